"""The journal: nothing that happens to the file blocks a run, and nothing in it is misread."""

from __future__ import annotations

import json
import logging
import math
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qdqtune.engines._timing import Round
from qdqtune.records._errors import OutputError, QdqtuneError, UsageError
from qdqtune.search.strategies._strategy import Score
from qdqtune.workflows.tuning._journal import AccuracyKey, Journal
from qdqtune.workflows.tuning._journal_format import (
    QUARANTINE,
    SCHEMA,
    as_said_before,
    check_state,
    encode,
    read_journal,
    whole_lines,
)

HEADER: dict[str, Any] = {
    "model": "0123",
    "engine": {
        "name": "some",
        "version": "1",
        "device": "cpu",
        "threads": 1,
        "options": {},
        "float_type": "float32",
    },
    "dialect": "onnxruntime",
    "quant_type": "int8",
    "shapes": {"x": [1, 3]},
}
DETAILS = {"latency_ms": 1.5, "reference_ms": 2.0}


def write(path: Path, measurements: int = 6, header: dict[str, Any] = HEADER) -> list[bytes]:
    """A journal of some measurements; its lines."""
    journal = Journal(path, header)
    for number in range(measurements):
        key = f"key{number}"
        journal.name_of(key)
        journal.add("float", key, "screen-10", Score(number / 10, 0.01), DETAILS)
    journal.close()
    return path.read_bytes().splitlines(keepends=True)


def known(journal: Journal, measurements: int = 6) -> dict[int, float]:
    """What a journal knows of those measurements."""
    found = {n: journal.known("float", f"key{n}", "screen-10") for n in range(measurements)}
    return {number: score.gain for number, score in found.items() if score is not None}


def test_what_was_written_is_known(tmp_path: Path) -> None:
    path = tmp_path / "measurements.jsonl"
    write(path)
    journal = Journal(path, HEADER)
    assert known(journal) == {number: number / 10 for number in range(6)}
    assert (journal.session, journal.earlier_benchmarks) == (2, 6)


def test_rounds_are_continued_only_by_the_worker_that_measured_them(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "measurements.jsonl", HEADER)
    of_one, of_other = [Round(1.0, (2.0,), (0.1,))], [Round(1.0, (3.0,), (0.2,))] * 2
    for worker, rounds in (("worker 1", of_one), ("worker 2", of_other)):
        for each in rounds:
            journal.add_round("float", ["key"], "screen-10", each, worker)
    journal.close()
    again = Journal(tmp_path / "measurements.jsonl", HEADER)
    assert again.rounds("float", ["key"], "screen-10", "worker 1") == of_one
    assert again.rounds("float", ["key"], "screen-10", "worker 2") == of_other
    assert again.rounds("float", ["key"], "screen-10", "worker 3") == []
    assert again.rounds("float", ["key"], "screen-10") == []  # the only worker of its run
    again.close()


def test_a_cut_at_any_byte_of_the_last_records_costs_those_records_only(tmp_path: Path) -> None:
    path = tmp_path / "measurements.jsonl"
    lines = write(path)
    whole = b"".join(lines)
    for cut in range(len(b"".join(lines[:-3])), len(whole) + 1):
        path.write_bytes(whole[:cut])
        (tmp_path / QUARANTINE).unlink(missing_ok=True)
        ends = [len(b"".join(lines[: n + 1])) - 1 for n in range(len(lines))]
        complete = [json.loads(lines[n]) for n, end in enumerate(ends) if cut >= end]
        wanted = sum(line["kind"] == "measurement" for line in complete)
        journal = Journal(path, HEADER)
        assert len(known(journal)) == wanted
        journal.add("float", "new", "screen-10", Score(0.5, 0.1), DETAILS)
        journal.close()
        again = Journal(path, HEADER)  # what is added after a cut line is not spoiled by it
        assert again.known("float", "new", "screen-10") == Score(0.5, 0.1)
        assert len(known(again)) == wanted
        again.close()


@settings(max_examples=40)
@given(st.data())
def test_a_flipped_bit_is_never_trusted(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("flip")
    path = folder / "measurements.jsonl"
    content = bytearray(b"".join(write(path)))
    position = data.draw(st.integers(0, len(content) - 1))
    content[position] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(content)
    journal = Journal(path, HEADER)
    found = known(journal)
    assert len(found) >= 4  # a flipped line end joins two lines
    assert all(gain == number / 10 for number, gain in found.items())
    journal.close()
    assert all(line.body is not None for line in read_journal(path))
    quarantined = (folder / QUARANTINE).read_text().splitlines()
    assert {json.loads(line)["file"] for line in quarantined} == {path.name}


def test_a_damaged_line_is_named_and_set_aside(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "measurements.jsonl"
    lines = write(path)
    number = next(n for n, line in enumerate(lines) if b"key2" in line and b"measurement" in line)
    path.write_bytes(b"".join([*lines[:number], b"garbage \xff\n", *lines[number + 1 :]]))
    with caplog.at_level(logging.WARNING):
        journal = Journal(path, HEADER)
    assert sorted(known(journal)) == [0, 1, 3, 4, 5]
    assert f"{path}:{number + 1} is damaged" in caplog.text
    aside = json.loads((tmp_path / QUARANTINE).read_text())
    assert aside == {"file": path.name, "line": number + 1, "text": "garbage \\xff"}


def test_of_a_line_that_is_too_long_the_beginning_is_set_aside(tmp_path: Path) -> None:
    path = tmp_path / "measurements.jsonl"
    lines = write(path)
    with path.open("wb") as file:
        file.writelines(lines[:-1])
        file.write(b"[")
        file.truncate(file.tell() + (40 << 20))
        file.seek(0, 2)
        file.write(b"\n" + lines[-1])
    (long,) = [line for line in read_journal(path) if line.body is None]
    assert (long.number, len(long.text)) == (len(lines), 1 << 16)
    assert set(known(Journal(path, HEADER))) == set(range(6))
    assert (tmp_path / QUARANTINE).stat().st_size < 1 << 20


def test_a_journal_of_too_many_lines_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "measurements.jsonl"
    write(path)
    monkeypatch.setattr("qdqtune.workflows.tuning._journal_format._MOST_LINES", 12)
    with pytest.raises(UsageError, match=r"more than 12 lines or 1,024 MB"):
        Journal(path, HEADER)


def test_without_its_header_a_line_still_says_whose_it_is(tmp_path: Path) -> None:
    path = tmp_path / "measurements.jsonl"
    lines = write(path)
    path.write_bytes(b"".join([b"broken\n", *lines[1:]]))
    assert len(known(Journal(path, HEADER))) == 6
    path.write_bytes(before := b"".join([b"broken\n", *lines[1:]]))
    with pytest.raises(UsageError, match="something else"):
        Journal(path, {**HEADER, "model": "another"})
    assert path.read_bytes() == before


def changed(header: dict[str, Any], path: str) -> dict[str, Any]:
    field, _, inner = path.partition(".")
    if inner:
        return {**header, field: changed(header[field], inner)}
    return {**header, field: "something else"}


@pytest.mark.parametrize(
    ("field", "called"),
    [
        ("model", "model"),
        ("engine.name", "engine"),
        ("engine.version", "version of the engine"),
        ("engine.device", "device"),
        ("engine.threads", "number of threads"),
        ("engine.options", "engine.options"),
        ("engine.float_type", "float type"),
        ("dialect", "dialect"),
        ("quant_type", "quant type"),
        ("shapes.x", "shape of the input 'x'"),
    ],
)
def test_measurements_of_something_else_are_refused_and_the_field_named(
    tmp_path: Path, field: str, called: str
) -> None:
    path = tmp_path / "measurements.jsonl"
    write(path)
    before = path.read_bytes()
    with pytest.raises(UsageError, match=rf"another {called}[:.]"):
        Journal(path, as_said_before(path, changed(HEADER, field)))
    assert path.read_bytes() == before


def test_what_earlier_versions_did_not_say_is_no_other_run(tmp_path: Path) -> None:
    path = tmp_path / "measurements.jsonl"
    engine = {k: v for k, v in HEADER["engine"].items() if k != "float_type"}
    write(path, header={**HEADER, "engine": engine})
    journal = Journal(path, as_said_before(path, HEADER))
    assert len(known(journal)) == 6
    assert as_said_before(tmp_path / "none.jsonl", HEADER) == HEADER


@pytest.mark.parametrize(
    ("there", "called"),
    [
        ({"engine": "some"}, "engine"),
        ({"engine": {"name": "other"}}, "engine: other, not some"),
        ({"precision": "float16", "model": "4567"}, "precision: float16, not as given"),
        ({"model": "4567"}, r"model\."),
    ],
)
def test_a_state_file_of_something_else_is_refused(there: dict[str, Any], called: str) -> None:
    with pytest.raises(
        UsageError, match=rf"state.yaml is the state of a run with another {called}"
    ):
        check_state(Path("state.yaml"), there, HEADER)


def test_what_only_one_header_says_is_no_other_run() -> None:
    for there in ({}, {"model": "0123"}, {"engine": {"name": "some"}, "quant_type": "int8"}):
        check_state(Path("state.yaml"), there, HEADER)


def test_a_newer_schema_is_refused_not_thrown_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "measurements.jsonl"
    write(path)
    monkeypatch.setattr("qdqtune.workflows.tuning._journal_format.SCHEMA", SCHEMA + 1)
    newer = encode({"kind": "measurement", "something": "new"})
    monkeypatch.undo()
    path.write_text(path.read_text() + newer)
    before = path.read_bytes()
    with pytest.raises(UsageError, match="newer version"):
        Journal(path, HEADER)
    assert path.read_bytes() == before


@given(st.lists(st.binary(max_size=40) | st.dictionaries(st.text(max_size=8), st.integers())))
def test_a_line_of_anything_is_a_line_or_damaged(
    tmp_path_factory: pytest.TempPathFactory, lines: list[Any]
) -> None:
    path = tmp_path_factory.mktemp("any") / "measurements.jsonl"
    texts = [line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines]
    path.write_bytes(b"\n".join(texts))
    list(whole_lines(path))
    Journal(path, HEADER).close()


@settings(max_examples=100)
@given(
    st.sampled_from(["run", "session", "end", "shares", "candidate", "round", "measurement", "x"]),
    st.dictionaries(
        st.sampled_from(
            ["header", "number", "seconds", "shares", "id", "key", "reference", "effort", "gain",
             "candidates", "baseline_ms", "latencies_ms", "log_ratios", "candidate", "error",
             "failure", "latency_ms", "reference_ms", "run", "session", "at_s"]
        ),
        st.none() | st.integers() | st.text(max_size=5) | st.lists(st.integers(), max_size=3)
        | st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
    ),
)  # fmt: skip
def test_a_whole_line_that_makes_no_sense_does_no_harm(
    tmp_path_factory: pytest.TempPathFactory, kind: str, fields: dict[str, Any]
) -> None:
    path = tmp_path_factory.mktemp("odd") / "measurements.jsonl"
    write(path, 1)
    path.write_text(path.read_text() + encode({**fields, "kind": kind}))
    try:
        journal = Journal(path, HEADER)
    except QdqtuneError:
        return
    assert known(journal, 1) in ({0: 0.0}, {})
    journal.close()


ROUND = {
    "kind": "round", "reference": "float", "effort": "screen-10", "candidates": ["c0000"],
    "baseline_ms": 2.0, "latencies_ms": [1.0], "log_ratios": [0.7],
}  # fmt: skip
MEASUREMENT = {
    "kind": "measurement", "reference": "float", "candidate": "key0", "effort": "screen-10",
    "gain": 0.1, "error": 0.01, "failure": None, **DETAILS,
}  # fmt: skip


@pytest.mark.parametrize(
    "body",
    [
        *({**ROUND, "baseline_ms": ms} for ms in (1e308, 1e14, 5e-324, 0.0, -1.0, "2.0", True)),
        *({**ROUND, "latencies_ms": each} for each in ([1e14], [None], [], [1.0] * 9, {"0": 1.0})),
        {**ROUND, "log_ratios": [1e308]},
        {**ROUND, "candidates": ["../../x"]},
        {**ROUND, "candidates": ["c" + "9" * 5000]},
        *({**MEASUREMENT, "gain": gain} for gain in (None, 1e308, -745.0, 10**400, "0.1", [0.1])),
        *({**MEASUREMENT, "error": error} for error in (-0.1, 1e308, None)),
        {**MEASUREMENT, "latency_ms": 1e14},
        {**MEASUREMENT, "at_s": 1e300},
        {**MEASUREMENT, "session": 10**300},
        {"kind": "candidate", "id": "../../x", "key": "other"},
        {"kind": "candidate", "id": "c0000", "key": "other"},
        {"kind": "candidate", "id": "c0009", "key": "key0"},
        {"kind": "shares", "shares": {"n": -1.0}},
        {"kind": "calibration", "samples": 0},
        {"kind": "run", "header": {**HEADER, "shapes": {"x": {"1": 2}}}},
        {"kind": "run", "header": {**HEADER, "engine": ["simulated"]}},
        {"kind": "run", "header": {**HEADER, "quant_type": "uint8"}},
    ],
    ids=lambda body: f"{body['kind']}-{list(body.values())[-1]!r}"[:40],
)
def test_a_line_that_can_not_be_is_set_aside_with_its_number(
    tmp_path: Path, body: dict[str, Any]
) -> None:
    path = tmp_path / "measurements.jsonl"
    write(path, 3)
    lines = path.read_text().splitlines(keepends=True)
    (run,) = {json.loads(line)["run"] for line in lines}
    path.write_text("".join([*lines, encode({**body, "run": run})]))
    journal = Journal(path, HEADER)
    assert known(journal, 3) == {0: 0.0, 1: 0.1, 2: 0.2}
    journal.close()
    damaged = [json.loads(line) for line in (tmp_path / QUARANTINE).read_text().splitlines()]
    assert [line["line"] for line in damaged] == [len(lines) + 1]


def test_rounds_of_a_comparison_that_was_cut_off_are_known(tmp_path: Path) -> None:
    path = tmp_path / "measurements.jsonl"
    journal = Journal(path, HEADER)
    played = [Round(2.0, (1.0, 4.0), (0.7, -0.7)), Round(2.1, (1.1, 4.1), (0.6, -0.6))]
    for each in played:
        journal.add_round("float", ["one", "other"], "screen-10", each)
    journal.close()
    again = Journal(path, HEADER)
    assert again.rounds("float", ["one", "other"], "screen-10") == played
    assert again.rounds("float", ["other"], "screen-10")[0] == Round(2.0, (4.0,), (-0.7,))
    assert again.rounds("float", ["other"], "confirm-24") == []
    assert again.rounds("float", ["third"], "screen-10") == []


def test_the_id_of_a_candidate_whose_line_is_damaged_means_no_other(tmp_path: Path) -> None:
    path = tmp_path / "measurements.jsonl"
    journal = Journal(path, HEADER)
    journal.add_round("float", ["one"], "screen-10", Round(2.0, (1.0,), (0.7,)))
    journal.close()
    lines = path.read_bytes().splitlines(keepends=True)
    number = next(n for n, line in enumerate(lines) if b'"candidate", "id"' in line)
    path.write_bytes(b"".join([*lines[:number], b"damaged\n", *lines[number + 1 :]]))
    again = Journal(path, HEADER)
    assert again.name_of("another") == "c0001"
    assert again.rounds("float", ["another"], "screen-10") == []


def test_a_crash_counts_when_two_runs_have_seen_it(tmp_path: Path) -> None:
    path = tmp_path / "measurements.jsonl"
    for run in range(3):
        journal = Journal(path, HEADER)
        seen = journal.known("float", "bad", "screen-10")
        assert (seen is not None) == (run == 2)
        if seen is None:
            journal.add(
                "float", "bad", "screen-10", Score.failed("crash"), {**DETAILS, "unsure": True}
            )
        journal.add("float", "refused", "screen-10", Score.failed("no"), DETAILS)
        journal.close()
    assert Journal(path, HEADER).known("float", "refused", "screen-10") is not None


FILLS_THE_DISK = """
import sys
from pathlib import Path
from tests.workflows.test_journal import DETAILS, HEADER
from qdqtune.search.strategies._strategy import Score
from qdqtune.records._errors import OutputError
from qdqtune.workflows.tuning._journal import Journal
journal = Journal(Path(sys.argv[1]), HEADER)
try:
    for number in range(1000):
        journal.add("float", f"key{number}", "screen-10", Score(number / 10, 0.01), DETAILS)
except OutputError as error:
    print(number, error.what)
"""


def test_on_a_full_disk_what_was_written_stays(tmp_path: Path) -> None:
    path = tmp_path / "measurements.jsonl"
    limit = 5000  # a stand-in for a disk: files can't grow beyond it
    done = subprocess.run(
        [sys.executable, "-c", FILLS_THE_DISK, str(path)],
        cwd=Path(__file__).parents[2],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    number, _, what = done.stdout.partition(" ")
    assert "could not be written" in what
    assert len(known(Journal(path, HEADER), 1000)) == int(number) > 3


def test_a_journal_that_is_a_folder_is_an_error_of_ours(tmp_path: Path) -> None:
    (tmp_path / "measurements.jsonl").mkdir()
    with pytest.raises(OutputError, match="can't be written"):
        Journal(tmp_path / "measurements.jsonl", HEADER)


@pytest.mark.parametrize("value", [31.25, -3.0, math.inf, -math.inf, None])
def test_an_accuracy_that_was_written_is_known(tmp_path: Path, value: float | None) -> None:
    path, key = tmp_path / "measurements.jsonl", AccuracyKey("sqnr_db", "ab01", "cd23")
    journal = Journal(path, HEADER)
    journal.keep_accuracy(key, value)
    assert Journal(path, HEADER).accuracy == {key: value}


def test_an_accuracy_in_words_is_damaged(tmp_path: Path) -> None:
    key = AccuracyKey("sqnr_db", "ab01", "cd23")
    path = tmp_path / "measurements.jsonl"
    path.write_text(encode({"kind": "accuracy", **key._asdict(), "value": "good"}))
    assert [line.body for line in read_journal(path)] == [None]


def test_what_another_folder_measured_is_taken_over_once(tmp_path: Path) -> None:
    """Ids may mean other candidates there; a crash that is told twice was seen once."""
    one = Journal(tmp_path / "one.jsonl", HEADER)
    for key in ("a", "b", "crashed"):
        one.name_of(key)
    one.add("float", "a", "screen", Score(0.1, 0.01), DETAILS)
    one.add("float", "b", "screen", Score(0.2, 0.01), DETAILS)
    one.add("float", "crashed", "screen", Score.failed("SIGSEGV"), {**DETAILS, "unsure": True})
    one.add_round("float", ["a"], "confirm", Round(2.0, (1.0,), (0.7,)))
    one.keep_shares({"conv": 1.0})
    one.keep_accuracy(AccuracyKey("sqnr", "a", "x"), 30.0)
    for session in range(2):
        two = Journal(tmp_path / "two.jsonl", HEADER)
        if session == 0:
            two.name_of("b")
            two.add("float", "b", "screen", Score(0.3, 0.01), DETAILS)
        assert two.adopt(one.kept_lines) == (2 if session == 0 else 0)
        assert two.adopt([*one.kept_lines, "{", *(line[:-9] for line in one.kept_lines)]) == 0
        two.close()
    three = Journal(tmp_path / "two.jsonl", HEADER)
    a, b = three.known("float", "a", "screen"), three.known("float", "b", "screen")
    assert a is not None
    assert b is not None
    assert (a.gain, b.gain) == (0.1, 0.3)
    assert three.known("float", "crashed", "screen") is None
    assert (three.names["b"], three.names["a"]) == ("c0000", "c0001")
    assert three.shares == {"conv": 1.0}
    assert three.accuracy == {AccuracyKey("sqnr", "a", "x"): 30.0}
    assert three.earlier_benchmarks == 3
    assert not three.rounds("float", ["a"], "confirm")


def test_nothing_is_taken_over_from_another_engine(tmp_path: Path) -> None:
    write(tmp_path / "one.jsonl")
    other = Journal(tmp_path / "two.jsonl", {**HEADER, "quant_type": "uint8"})
    assert other.adopt(Journal(tmp_path / "one.jsonl", HEADER).kept_lines) == 0
    assert known(other) == {}
