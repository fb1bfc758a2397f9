"""Whatever lies in a file that we read as configuration or data: our errors, or a value.

The model loader is fuzzed by tests/fuzz. Documents here are sound ones with one part replaced, cut
or turned, because what is wrong from the start never gets past the first check.
"""

from __future__ import annotations

import contextlib
import copy
import io
import json
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from qdqtune.calibration._expected_inputs import ExpectedInput
from qdqtune.calibration._sample_set import open_samples
from qdqtune.cli.main import main
from qdqtune.records._errors import QdqtuneError
from qdqtune.records._inputs import InputRequest
from qdqtune.records._measurement import EngineInfo
from qdqtune.records._placement import Placement
from qdqtune.records._ranges import CalibrationSource, Ranges
from qdqtune.testing.simulated import QUIET
from tests.promises.models import one_matmul

EXAMPLES = settings(max_examples=60)
OLD_SUMMARY = Path(__file__).parents[1] / "data" / "runs" / "schema-2" / "summary.json"

DEEP = "[" * 5000 + "]" * 5000
ODD: list[Any] = [
    None, True, -1, 0, 10**400, -(10**30), 1e308, float("inf"), float("nan"), "", "\ud800", "\0",
    "../../x", [], {}, [[]], {"": None}, "9" * 5000, [None], {"__class__": "os.system"},
]  # fmt: skip
odd_values = st.sampled_from(ODD) | st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda below: st.lists(below, max_size=3) | st.dictionaries(st.text(max_size=3), below),
    max_leaves=5,
)


def places(document: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where something lies in a document."""
    yield path
    if isinstance(document, (dict, list)):
        items = document.items() if isinstance(document, dict) else enumerate(document)
        for key, value in items:
            yield from places(value, (*path, key))


@st.composite
def changed(draw: st.DrawFn, document: Any) -> Any:
    """A sound document of which one part was replaced, or left out."""
    *parents, last = draw(st.sampled_from([path for path in places(document) if path]))
    result = copy.deepcopy(document)
    holder = result
    for key in parents:
        holder = holder[key]
    if draw(st.integers(0, 4)) == 0:
        del holder[last]
    else:
        holder[last] = draw(odd_values)
    return result


PLACEMENT = json.loads(Placement.of([("x", "n0", 0), ("w", "n0", 1)], ["a"]).to_json("0" * 32))
RANGES = json.loads(Ranges({"x": (-1.0, 2.5)}, CalibrationSource.DATA, 4).to_json())
SUMMARY: dict[str, Any] = {
    "kind": "summary",
    "schema": 1,
    "output_sqnr_db": 30.0,
    "error_inputs": {"source": "random", "digest": "0", "ranges": {"x": [-1.0, 1.0]}},
    "conditions": {"model_sha256": "0" * 64},
    "seed": 1,
    "speedup": 1.5,
    "speedup_interval": [1.4, 1.6],
    "kept_float": False,
    "engine": EngineInfo("simulated", "1", "machine", "cpu-vnni", None, QUIET).to_dict(),
}


def ours(call: Callable[..., object], *arguments: object) -> None:
    """Calls; whatever is raised beside our errors is a failure of the test."""
    with contextlib.suppress(QdqtuneError):
        call(*arguments)


def test_the_documents_are_sound() -> None:
    assert Placement.from_json(json.dumps(PLACEMENT)).outputs == {"a"}
    assert Ranges.from_json(json.dumps(RANGES)).by_tensor == {"x": (-1.0, 2.5)}


@EXAMPLES
@given(changed(PLACEMENT))
def test_a_placement(document: Any) -> None:
    ours(Placement.from_json, json.dumps(document))


@EXAMPLES
@given(changed(RANGES))
@example({**RANGES, "ranges": {"x": [0, 10**400]}})
@example({**RANGES, "samples": float("inf")})
def test_ranges(document: Any) -> None:
    ours(Ranges.from_json, json.dumps(document))


@EXAMPLES
@given(st.text(max_size=20) | st.sampled_from([DEEP, "9" * 5000, '{"a":' * 5000, "\ud800"]))
def test_text_that_is_no_document(text: str) -> None:
    ours(Placement.from_json, text)
    ours(Ranges.from_json, text)


@EXAMPLES
@given(st.lists(st.text("abx:?=,[]()-.0123456789 \n\0e٣²", max_size=12), max_size=3))
def test_shapes_dims_and_ranges_of_inputs(texts: list[str]) -> None:
    for field in ("shapes", "dims", "ranges"):
        ours(lambda name=field: InputRequest.from_text(**{name: texts}))


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    for name in ("m.onnx", "optimized_final.onnx"):
        onnx.save(one_matmul(), folder / name)
    return folder


@EXAMPLES
@given(summary=changed(SUMMARY) | odd_values, placement=changed(PLACEMENT))
@example(summary={**SUMMARY, "speedup": 10**400}, placement=PLACEMENT)
@example(summary={**SUMMARY, "engine": {**SUMMARY["engine"], "name": []}}, placement=PLACEMENT)
@example(summary={**SUMMARY, "engine": {**SUMMARY["engine"], "name": 5}}, placement=PLACEMENT)
def test_what_a_run_left_beside_its_model(run_folder: Path, summary: Any, placement: Any) -> None:
    """Read by `verify`, which in the end finds no model to compare with."""
    (run_folder / "summary.json").write_text(json.dumps(summary))
    (run_folder / "placement.json").write_text(json.dumps(placement))
    missing = str(run_folder / "missing.onnx")
    final = str(run_folder / "optimized_final.onnx")
    assert main(["verify", final, "--against", missing, "-q"]) in (1, 2)


@pytest.mark.parametrize("engine", [{"name": 5}, {"options": 5}, {"options": [1]}], ids=str)
def test_an_engine_of_a_run_that_can_not_be(run_folder: Path, engine: dict[str, Any]) -> None:
    (run_folder / "placement.json").unlink(missing_ok=True)
    summary = {**SUMMARY, "engine": {**SUMMARY["engine"], **engine}}
    (run_folder / "summary.json").write_text(json.dumps(summary))
    model = str(run_folder / "optimized_final.onnx")
    assert main(["verify", model, "--against", model, "--runs", "2", "-q"]) == 1


@settings(max_examples=8)
@given(
    changed(PLACEMENT).map(lambda document: json.dumps(document).encode())
    | st.binary(max_size=20)
    | st.just(b"\xff\xfe")
)
def test_a_placement_that_is_to_be_inserted(run_folder: Path, content: bytes) -> None:
    file = run_folder / "given.json"
    file.write_bytes(content)
    line = ["insert", str(run_folder / "m.onnx"), "--placement", str(file), "-q", "--force"]
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stderr(err), contextlib.redirect_stdout(out):
        code = main([*line, "-o", str(run_folder / "q.onnx")])
    assert code in (0, 1, 2)
    assert code == 0 or err.getvalue().startswith("error: ")


def saved_arrays() -> dict[str, bytes]:
    array = np.arange(128, dtype=np.float32).reshape(2, 4, 16)
    npy = io.BytesIO()
    np.save(npy, array)
    found = {"x.npy": npy.getvalue()}
    methods = {"stored": 0, "deflated": 8, "bzip2": 12, "lzma": 14}
    for name, method in methods.items():
        archive = io.BytesIO()
        with zipfile.ZipFile(archive, "w", method) as file:
            file.writestr("x.npy", npy.getvalue())
        found[f"{name}.npz"] = archive.getvalue()
    found["x.pb"] = onnx.numpy_helper.from_array(array[0], "x").SerializeToString()
    return found


ARRAYS = saved_arrays()
SHAPES = ("(-1, 4, 16)", "(2, -4, -16)", "(" * 200, "-" * 4000 + "1", "(2**70,)", "(True,)")
DTYPES = ("'|O'", "[('a', '<f4')]", "'<U99999999'", "{}", "3", "('<f4', (2,))", "'|V0'")
HEADERS = [
    *(f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}}}" for shape in SHAPES),
    *(f"{{'descr': {dtype}, 'fortran_order': False, 'shape': (2, 4, 16)}}" for dtype in DTYPES),
    *("{1: 2, 'a': 3}", "{[]: 1}", "", "\0", "__import__('os')"),
]


def with_header(text: str) -> bytes:
    header = text.encode("latin1")
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(512)


@st.composite
def damaged(draw: st.DrawFn) -> tuple[str, bytes]:
    """A file of samples with some bytes changed, or cut off."""
    name = draw(st.sampled_from(sorted(ARRAYS)))
    content = bytearray(ARRAYS[name])
    for _ in range(draw(st.integers(1, 3))):
        content[draw(st.integers(0, len(content) - 1))] = draw(st.integers(0, 255))
    return name, bytes(content[: draw(st.integers(len(content) // 2, len(content)))])


@settings(max_examples=300)
@given(damaged() | st.sampled_from(HEADERS).map(lambda text: ("x.npy", with_header(text))))
@example(("x.pb", onnx.TensorProto(data_type=999, dims=[4, 16]).SerializeToString()))
@example(("x.pb", onnx.TensorProto(data_type=1, dims=[-4, -16]).SerializeToString()))
@example(("x.npy", with_header(HEADERS[0])))
@example(("x.npy", with_header(HEADERS[2])))
@example(("x.npy", with_header("{[]: 1}")))
def test_calibration_data(named: tuple[str, bytes]) -> None:
    name, content = named
    wanted = [ExpectedInput("x", ir.DataType.FLOAT, (4, 16))]

    def read_all() -> None:
        for sample in open_samples(file, wanted):
            assert sample["x"].shape == (4, 16)

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / name
        file.write_bytes(content)
        ours(read_all)


def test_sound_calibration_data_is_read() -> None:
    for name, content in ARRAYS.items():
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / name
            file.write_bytes(content)
            samples = list(open_samples(file, [ExpectedInput("x", ir.DataType.FLOAT, (4, 16))]))
            assert len(samples) == (1 if name == "x.pb" else 2)


TAGGED = [
    "a: !!int ''", "a: !!float ''", "a: !!bool maybe", "a: !!timestamp soon", "a: !!binary '?'",
    "a: !!python/object/apply:os.system [touch pwned]", "a: &b [*b]", "? [a]\n: b", "a: 2001-99-99",
    "a: 1:2:99999999999999999999", "%YAML 9.9\n---\na: b", "--- a\n--- b", "a: " + "[" * 2000,
    "a: !!omap [1]", "a: !!set [1]", "a: !!pairs x", "<<: 3", "a: .inf", "? !!int ''\n: 1",
]  # fmt: skip


def sound_state() -> dict[str, Any]:
    from qdqtune.search._config import Config
    from qdqtune.search.patterns._state_file import KIND, SCHEMA

    def pattern() -> dict[str, Any]:  # anew each time: one that is in two places is an alias
        scheme = {"latency_ms": 1.5, "error": False}
        return {"pattern_signature": "Conv->Relu", "schemes": [scheme]}

    return {
        "kind": KIND, "schema": SCHEMA, "header": {"model": "0"}, "baseline_latency_ms": 2.5,
        "config": Config().to_dict(), "patterns": [pattern()], "pattern_schemes": [pattern()],
    }  # fmt: skip


yaml_texts = (
    st.sampled_from(TAGGED)
    | st.builds("{}\n{}".format, st.just("kind: autotuner_state"), st.sampled_from(TAGGED))
    | st.text("ab:-[]{}&*!|>'\"%@,#? \n0.1~", max_size=30)
    | st.deferred(lambda: changed(sound_state())).map(
        lambda document: yaml.safe_dump(document, allow_unicode=False)
    )
)


@settings(max_examples=100)
@given(yaml_texts)
def test_state_files_and_pattern_caches(run_folder: Path, text: str) -> None:
    from qdqtune.search.patterns._pattern_cache import PatternCache
    from qdqtune.search.patterns._state_file import read_state

    file = run_folder / "state.yaml"
    file.write_bytes(text.encode("utf-8", "surrogatepass"))
    ours(read_state, file)
    file.write_bytes(
        text.replace("autotuner_state", "pattern_cache").encode("utf-8", "surrogatepass")
    )
    ours(PatternCache.load, file)


def test_the_state_is_sound(run_folder: Path) -> None:
    from qdqtune.search.patterns._pattern_cache import PatternCache
    from qdqtune.search.patterns._state_file import read_state

    file = run_folder / "sound.yaml"
    file.write_text(yaml.safe_dump(sound_state()))
    assert read_state(file).baseline_latency_ms == 2.5
    file.write_text(yaml.safe_dump({**sound_state(), "kind": "pattern_cache"}))
    PatternCache.load(file)


@pytest.mark.parametrize("value", ODD, ids=lambda value: repr(value)[:20])
def test_any_latency_in_a_state_file(run_folder: Path, value: Any) -> None:
    from qdqtune.search.patterns._pattern_cache import PatternCache
    from qdqtune.search.patterns._state_file import read_state

    file, state = run_folder / "latency.yaml", sound_state()
    state["patterns"][0]["schemes"][0]["latency_ms"] = value
    for body in ({**sound_state(), "baseline_latency_ms": value}, state):
        file.write_text(yaml.safe_dump(body))
        ours(read_state, file)
        file.write_text(yaml.safe_dump({**body, "kind": "pattern_cache"}))
        ours(PatternCache.load, file)


def test_every_tag_in_a_state_file(run_folder: Path) -> None:
    from qdqtune.search.patterns._state_file import read_state

    file = run_folder / "tagged.yaml"
    wrong = {}
    for text in TAGGED:
        file.write_text(text)
        try:
            read_state(file)
        except QdqtuneError:
            continue
        except Exception as error:
            wrong[text] = error
    assert wrong == {}


HEADER = {
    "model": "0" * 32,
    "engine": {"name": "simulated", "threads": None, "options": {"seed": "0"}},
    "shapes": {"x": [4, 16]},
}
DETAILS = {"latency_ms": 1.5, "reference_ms": 2.0, "groups": [0], "rounds": 8, "unsure": True}


@pytest.fixture(scope="module")
def journal_bodies(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What a journal says that has lines of every kind."""
    from qdqtune.engines._timing import Round
    from qdqtune.search.strategies._strategy import Score
    from qdqtune.workflows.tuning._journal import AccuracyKey, Journal
    from qdqtune.workflows.tuning._journal_format import whole_lines

    path = tmp_path_factory.mktemp("journal") / "measurements.jsonl"
    journal = Journal(path, HEADER)
    float_key = Placement().digest()
    for key in (float_key, "one", "two"):
        journal.name_of(key)
        journal.keep_file(key, "ab" * 16)
    journal.keep_shares({"n0": 0.5, "n1": 0.5})
    journal.keep_samples(4)
    journal.keep_division("scope")
    journal.keep_build_s(12.5)
    journal.add_round(float_key, ["one", "two"], "screen", Round(2.0, (1.5, 1.4), (0.2, 0.3)))
    journal.add(float_key, "one", "screen", Score(0.2, 0.01), DETAILS)
    journal.add("one", "two", "confirm", Score(0.1, 0.01), DETAILS)
    journal.add("one", "bad", "confirm", Score.failed("no kernel"), DETAILS)
    journal.keep_accuracy(AccuracyKey("sqnr_db", "one", "x"), 31.5)
    journal._append({"kind": "adopted", "seconds": 3.5})
    journal.end("finished")
    journal.close()
    return list(whole_lines(path))


def sealed(body: Any) -> bytes:
    """A line with the checksum that it has to have, whatever it says."""
    from qdqtune.workflows.tuning._journal_format import checksum

    whole = {**body, "checksum": checksum(body)} if isinstance(body, dict) else body
    return json.dumps(whole).encode() + b"\n"


def test_the_journal_is_sound(run_folder: Path, journal_bodies: list[dict[str, Any]]) -> None:
    from qdqtune.workflows.tuning._journal_format import _FIELDS, whole_lines

    path = run_folder / "sound.jsonl"
    path.write_bytes(b"".join(map(sealed, journal_bodies)))
    assert list(whole_lines(path)) == journal_bodies
    assert {body["kind"] for body in journal_bodies} == _FIELDS.keys()


@settings(max_examples=300)
@given(st.data())
def test_a_journal_with_sound_checksums(
    run_folder: Path, journal_bodies: list[dict[str, Any]], data: st.DataObject
) -> None:
    """One field of one line is anything at all: what is opened afterwards can be resumed."""
    from qdqtune.records._verification import Claim
    from qdqtune.workflows._claims import shapes_of_run
    from qdqtune.workflows._export import list_candidates
    from qdqtune.workflows.tuning._folder import JOURNAL
    from qdqtune.workflows.tuning._journal import Journal

    number = data.draw(st.integers(0, len(journal_bodies) - 1))
    lines = [*journal_bodies]
    lines[number] = data.draw(changed(lines[number]) | odd_values)
    path = run_folder / JOURNAL
    path.write_bytes(b"".join(map(sealed, lines)))
    ours(_list_in_words, list_candidates, run_folder)
    ours(shapes_of_run, Claim.from_summary(SUMMARY), run_folder)
    ours(_go_on, Journal, path)


def _list_in_words(list_candidates: Callable[[Path], Any], folder: Path) -> None:
    from qdqtune.report._tuning import candidates_record, candidates_text

    candidates = list_candidates(folder)
    candidates_text(candidates)
    json.dumps(candidates_record(candidates), allow_nan=False)


def _go_on(journal_class: Any, path: Path) -> None:
    """What a run that goes on does with a journal."""
    from qdqtune.search.strategies._strategy import Score, speedup_of

    journal = journal_class(path, HEADER)
    keys = [Placement().digest(), "one", "two", "bad"]
    known = [journal.known(a, b, e) for a in keys for b in keys for e in ("screen", "confirm")]
    for score in filter(None, known):
        assert score.failure is not None or 0.0 < speedup_of(score.gain) < 1e5
    for each in journal.rounds(Placement().digest(), ["one", "two"], "screen"):
        assert each.baseline_ms > 0.0
    names = [journal.name_of(key) for key in (*keys, "three")]
    assert len(set(names)) == len(names)
    assert all(name.startswith("c") and name[1:].isdecimal() for name in names)
    journal.add("one", "three", "screen", Score(0.1, 0.01), DETAILS)
    journal.end(f"after {journal.earlier_s:.1f} s and {journal.earlier_benchmarks}")
    journal.close()
    again = journal_class(path, HEADER)
    assert again.known("one", "three", "screen") == Score(0.1, 0.01)
    again.close()


@pytest.fixture(scope="module")
def subgraph_cache(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What subgraph mode keeps, with something in every part of it."""
    from qdqtune.records._tuning import BY_LAYERS, Batch, SchemeTimes, SubgraphTimes
    from qdqtune.search.subgraphs._observed_costs import ObservedCosts
    from qdqtune.workflows.tuning._subgraph_cache import SeenInPlace, SubgraphCache, TimedGroup

    cache = SubgraphCache(tmp_path_factory.mktemp("cache") / "autotune_cache.json", HEADER)
    cache.keep_groups([TimedGroup(("n0", "n1"), 0.4, "whole"), TimedGroup(("n2",), 0.2)], 1)
    cache.keep_build_s(0.05)
    forms = [SchemeTimes(name, 0.4, 0.3, (0.1, 0.0), (0.0, 0.1)) for name in ("none", "full")]
    cache.keep_subgraph(
        SubgraphTimes("subgraph", BY_LAYERS, tuple(forms), "subgraph_0000.none.onnx")
    )
    cache.keep_batches([Batch("raw", 2, 0, 1.6, 1.5, 0.01, True)])
    seen = ObservedCosts(frozenset({0}), {0: 0.3}, 0.1, {"x": 0.1}, {"y": 0.1}, frozenset(), 0.2)
    cache.keep_seen("key", seen, "units")
    cache.keep_in_place([SeenInPlace(("n0",), seen)])
    cache.keep_refused(["n2"])
    cache.keep_predictions({"key over other": 1.5})
    cache.keep_profiled()
    return dict(json.loads(cache.path.read_text()))


@settings(max_examples=200)
@given(st.data())
def test_the_cache_of_subgraph_mode(
    run_folder: Path, subgraph_cache: dict[str, Any], data: st.DataObject
) -> None:
    """What is read is written again, and is the same then; what can't be is done without."""
    from qdqtune.workflows.tuning._subgraph_cache import SubgraphCache

    path = run_folder / "autotune_cache.json"
    path.write_text(json.dumps(data.draw(changed(subgraph_cache) | odd_values)))
    read = SubgraphCache(path, HEADER)
    read.keep_profiled()
    again = SubgraphCache(path, HEADER)
    assert (again.subgraphs, again.groups, again.whole_models) == (
        read.subgraphs,
        read.groups,
        read.whole_models,
    )
    assert again.seen == read.seen
    for times in again.subgraphs.values():
        assert all(0.0 <= form.total_ms <= 1e9 for form in times.forms)


@pytest.mark.parametrize("mode", ["region", "subgraph"])
def test_the_summary_of_an_earlier_run(mode: str) -> None:
    """It is told again if nothing better was found: what is read can be told."""
    from qdqtune.records._tuning import Batch, Summary, TuneResult
    from qdqtune.report._tuning import tune_text

    sound = Summary.from_dict(json.loads(OLD_SUMMARY.read_text())).to_dict()
    if mode == "subgraph":
        counts = dict.fromkeys(("groups", "structural", "all_pieces", "pieces", "units"), 2)
        batch = Batch("raw", 2, 0, 1.6, 1.5, 0.01, True)
        sound.update(mode=mode, subgraphs=counts, batches=[batch.to_dict()])
    sound = json.loads(json.dumps(sound))
    wrong, told = {}, 0
    for path in (path for path in places(sound) if path):
        for value in ODD:
            document = copy.deepcopy(sound)
            holder = document
            for key in path[:-1]:
                holder = holder[key]
            holder[path[-1]] = value
            try:
                summary = Summary.from_dict(document)
            except (ValueError, LookupError, TypeError, AttributeError, QdqtuneError):
                continue
            told += 1
            try:
                tune_text(TuneResult(Path("m.onnx"), Path("run"), Placement(), summary))
                json.dumps(summary.to_dict(), allow_nan=False)
            except Exception as error:
                wrong[path, repr(value)[:20]] = error
    assert not wrong
    assert told > 100
