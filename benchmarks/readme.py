"""The parts of the README that are measured: tables, outputs of commands, and the picture.

    python -m benchmarks.readme          the tables, from results.jsonl, and the links
    python -m benchmarks.readme --run    also runs the README's commands: their outputs

A table is what `python -m benchmarks` measured last for each model and engine. An output keeps the
lines that the README shows, by how they begin, with the new figures; "…" stands for what is left
out. Links are absolute, so that they work on PyPI, and begin with the repository that
pyproject.toml names. `python -m benchmarks.readme_picture` makes the picture.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import results
from benchmarks.rivals import DYNAMIC, NNCF, RULES, STATIC, TUNED
from benchmarks.tuning import KIND
from qdqtune.config import DEFAULT_MIN_SQNR_DB

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
ENGINES = {"onnxruntime": "ONNX Runtime", "openvino": "OpenVINO"}
COLUMNS = {
    STATIC: "`quantize_static`", DYNAMIC: "`quantize_dynamic`", NNCF: "NNCF",
    RULES: "`qdqtune quantize`", TUNED: "`qdqtune tune`",
}  # fmt: skip
LEFT_OUT = "…"
_REPOSITORY = re.compile(r'^Repository = "(.+)"$', re.MULTILINE)
_OWN_LINK = re.compile(r"https://[^)\s]+?(?=/(?:blob|raw|tree)/main/)")
_EXAMPLE = re.compile(
    r"^```sh\n(?P<commands>(?:(?!```).*\n)+)```\n\n```text\n(?P<shown>(?:(?!```).*\n)+)```$",
    re.MULTILINE,
)


def records(path: Path = results.RESULTS) -> list[dict[str, Any]]:
    """The newest record of each model and engine in which everything took turns."""
    found = [each for each in results.read(KIND, path) if each.get("turns")]
    order = {name: number for number, name in enumerate(ENGINES)}
    newest = [each for each in results.newest(found, "model", "engine") if each["engine"] in order]
    models = list(dict.fromkeys(each["model"] for each in newest))
    return sorted(newest, key=lambda each: (models.index(each["model"]), order[each["engine"]]))


def results_table(found: Sequence[Mapping[str, Any]]) -> str:
    """Models by quantizers, and how to measure it again; empty without records."""
    if not found:
        return ""
    columns = [label for label in COLUMNS if any(label in each["turns"] for each in found)]
    rows = [["model", "engine", "float", *(COLUMNS[label] for label in columns)]]
    rows.append(["---", "---", *("--:" for _ in (None, *columns))])
    for each in found:
        first = [f"`{each['model']}`", ENGINES[each["engine"]], f"{each['float_ms']:.3g} ms"]
        rows.append([*first, *_cells(each["turns"], columns)])
    return "\n".join((*map(_row, rows), "", _caption(found)))


def _cells(turns: Mapping[str, Mapping[str, Any]], columns: Sequence[str]) -> list[str]:
    """The speedups of a record, and how accurate the files are; the fastest in bold."""
    ratios = {
        label: turn["ratio"]
        for label, turn in turns.items()
        if turn["ratio"] is not None
        and (turn["kept_float"] or (turn["sqnr_db"] or 0.0) >= DEFAULT_MIN_SQNR_DB)
    }
    fastest = max(ratios, key=lambda label: ratios[label], default="")
    cells = []
    for label in columns:
        turn = turns.get(label)
        if turn is None or turn["ratio"] is None:
            cells.append("–")
        elif turn["kept_float"]:
            cells.append("float kept")
        else:
            ratio = f"{turn['ratio']:.2f}×"
            db = "" if turn["sqnr_db"] is None else f" {turn['sqnr_db']:.0f} dB"
            cells.append(f"**{ratio}**{db}" if label == fastest else ratio + db)
    return cells


def cross_table(found: Sequence[Mapping[str, Any]]) -> str:
    """What a model that was tuned for one engine is worth on the other; empty without records."""
    by_key = {(each["model"], each["engine"]): each for each in found}
    models = [model for model in dict.fromkeys(each["model"] for each in found)
              if all((model, engine) in by_key for engine in ENGINES)]  # fmt: skip
    if not models:
        return ""
    rows = [["tuned for", "run on", *(f"`{model}`" for model in models)]]
    rows.append(["---", "---", *("--:" for _ in models)])
    for one in ENGINES:
        for other in ENGINES:
            chosen = [by_key[model, one] for model in models]
            ratios = [
                each["over_float"] if one == other else each["elsewhere"].get(other)
                for each in chosen
            ]
            rows.append([ENGINES[one], ENGINES[other], *map(_speedup, ratios)])
    return "\n".join(map(_row, rows))


def _speedup(ratio: float | str | None) -> str:
    return f"{ratio:.2f}×" if isinstance(ratio, float) else "–"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _caption(found: Sequence[Mapping[str, Any]]) -> str:
    """On what it was measured, and by which commands."""
    devices = ", ".join(dict.fromkeys(f"{each['device']} ({each['isa']})" for each in found))
    versions = [f"{ENGINES[each['engine']]} {each['version']}" for each in found]
    versions += [f"NNCF {each['turns'][NNCF]['form']} (its ONNX backend)"
                 for each in found if NNCF in each["turns"]]  # fmt: skip
    days = sorted({each["time"][:10] for each in found})
    names = ",".join(dict.fromkeys(each["model"] for each in found))
    return (
        f"One thread of {devices}; {', '.join(dict.fromkeys(versions))}; "
        f"{' and '.join(dict.fromkeys((days[0], days[-1])))}. "
        f'Again: `make bench ARGS="--models {names}"`, and with `--engine openvino`.'
    )


def with_tables(text: str, found: Sequence[Mapping[str, Any]]) -> str:
    """The README with its tables between their markers."""
    for name, table in (("results", results_table(found)), ("cross", cross_table(found))):
        begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
        before, _, rest = text.partition(begin)
        _, _, after = rest.partition(end)
        text = f"{before}{begin}{table}{table and chr(10)}{end}{after}"
    return text


def repository() -> str:
    """Where the files that the README links to are."""
    (url,) = _REPOSITORY.findall((ROOT / "pyproject.toml").read_text("utf-8"))
    return str(url)


def examples(text: str) -> list[tuple[str, str]]:
    """Blocks of commands, and what the README shows of their output."""
    return [(found["commands"], found["shown"]) for found in _EXAMPLE.finditer(text)]


def first_word(line: str) -> str:
    """How a line begins, whatever was measured: its first word, without digits."""
    return re.sub(r"[\d.,]+", "#", (line.split() or [""])[0])


def says_something(lines: Sequence[str]) -> bool:
    """Whether more is left out than blank lines and the rules of tables."""
    return any(line.strip("- ") for line in lines)


def shortened(output: str, shown: str) -> str:
    """The lines of an output that begin as those that are shown, in the same order.

    Raises:
        ValueError: If a line that is shown has none in the output.
    """
    lines = [line.rstrip() for line in output.splitlines()]
    chosen: list[str] = []
    last = -1
    for line in shown.splitlines():
        if not line.strip() or line == LEFT_OUT:
            continue
        at = next((number for number in range(last + 1, len(lines))
                   if first_word(lines[number]) == first_word(line)), None)  # fmt: skip
        if at is None:
            raise ValueError(f"no line begins as {line!r} in the output:\n{output}")
        if says_something(lines[last + 1 : at]):
            chosen.append(LEFT_OUT)
        chosen.append(lines[at])
        last = at
    if says_something(lines[last + 1 :]):
        chosen.append(LEFT_OUT)
    return "".join(f"{line}\n" for line in chosen)


def with_outputs(text: str) -> str:
    """The README with what its commands print now; they run in a new folder."""
    here = str(Path(sys.executable).parent)
    environment = {**os.environ, "PATH": here + os.pathsep + os.environ["PATH"]}
    with tempfile.TemporaryDirectory(prefix="qdqtune-readme-") as folder:

        def again(found: re.Match[str]) -> str:
            done = subprocess.run(
                ["/bin/sh", "-ec", found["commands"]], cwd=folder, env=environment,
                text=True, check=True, stdout=subprocess.PIPE,
            )  # fmt: skip
            return found[0].replace(found["shown"], shortened(done.stdout, found["shown"]))

        return _EXAMPLE.sub(again, text)


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the README."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.readme", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--run", action="store_true", help="also run the README's commands")
    parser.add_argument("--results", type=Path, default=results.RESULTS, help="what was measured")
    parser.add_argument("--output", type=Path, default=README, help="what is written")
    options = parser.parse_args(arguments)
    text = _OWN_LINK.sub(repository(), README.read_text("utf-8"))
    text = with_tables(text, records(options.results))
    options.output.write_text(with_outputs(text) if options.run else text, "utf-8")


if __name__ == "__main__":
    main()
