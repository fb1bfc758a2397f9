from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from tests.stand_ins.fixtures import stand_in_environment, write_stand_in_trtexec

from qdqtune.engines._interface import SessionOptions
from qdqtune.engines._worker_environment import LOGS, SCRATCH
from qdqtune.engines.tensorrt._layer_info import read_layer_info
from qdqtune.engines.tensorrt._trtexec import TrtexecEngine
from qdqtune.engines.tensorrt._trtexec_arguments import notes_on
from qdqtune.engines.tensorrt._trtexec_program import TrtexecError
from qdqtune.records._health import Gpu, GpuHealth

SAMPLES = Path(__file__).parents[1] / "data" / "tensorrt" / "rtx171"
FLOAT = str(SAMPLES / "fp32.onnx")
INT8 = str(SAMPLES / "r_q_skip.onnx")
OPEN = str(SAMPLES / "dyn.onnx")
FLOAT_FEEDS = {"x": np.ones((1, 8, 16, 16), np.float32)}
INT8_FEEDS = {"x": np.ones((1, 32, 16, 16), np.float16)}
PROFILING = "exportProfile exportLayerInfo profilingVerbosity separateProfileRun"


class StandIn:
    """The stand-in trtexec on PATH, and what it was called with."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self._patch = monkeypatch
        self._calls = folder / "calls"

    def engine(self, version: str = "10.16.1", **said: str) -> TrtexecEngine:
        """An engine on it; a version is a program of its own, whose version is asked once."""
        program = write_stand_in_trtexec(self.folder / version)
        variables = stand_in_environment(program, version, calls=self._calls, **said)  # type: ignore[arg-type]
        for name, value in variables.items():
            self._patch.setenv(name, value)
        return TrtexecEngine()

    def behind(self, script: str) -> str:
        """A program that runs a script, and then the stand-in."""
        path = self.folder / "before" / "trtexec"
        path.parent.mkdir()
        program = self.folder / "10.16.1" / "trtexec"
        path.write_text(f'#!/bin/sh\n{script}\nexec {program} "$@"\n')
        path.chmod(0o755)
        return str(path)

    @property
    def calls(self) -> list[list[str]]:
        lines = self._calls.read_text().splitlines()
        return [json.loads(line)[1:] for line in lines if "--help" not in line]

    def names(self, call: int) -> set[str]:
        """Options of one call."""
        return {argument.partition("=")[0] for argument in self.calls[call]}

    def said(self, option: str) -> list[str]:
        """Values of an option in all calls."""
        start = f"{option}="
        found = [each for call in self.calls for each in call if each.startswith(start)]
        return [each.removeprefix(start) for each in found]


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    for name, folder in ((SCRATCH, "scratch"), (LOGS, "logs"), ("XDG_CACHE_HOME", "cache")):
        (tmp_path / folder).mkdir()
        monkeypatch.setenv(name, str(tmp_path / folder))
    return StandIn(tmp_path, monkeypatch)


def options(**given: str) -> SessionOptions:
    return SessionOptions(engine_options=given)


def fails_with(option: str, error: str) -> str:
    """A script that ends with an error if an option was said."""
    message = f"[01/01/2026-00:00:00] [E] {error}"
    return f'case "$*" in *{option}*) echo "{message}" >&2; exit 1;; esac'


def rows(number: int) -> dict[str, np.ndarray]:
    return {"x": np.ones((number, 8, 16, 16), np.float32)}


class TestInfo:
    def test_is_the_same_before_and_after_a_model(self, stand_in: StandIn) -> None:
        engine = stand_in.engine("8.6.1")
        before = engine.info(options(args="--fp16"))
        engine.open(FLOAT, options())
        assert engine.info(options(args="--fp16")) == before
        assert (before.name, before.version) == ("trtexec", "8.6.1")
        assert before.options == {"args": "--fp16", "typing": "weak"}

    def test_the_gpu_is_the_one_that_is_asked_for(
        self, stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        gpus = GpuHealth("550.54", "12.4", (Gpu("NVIDIA A", "8.6"), Gpu("NVIDIA B", "9.0")), "")
        monkeypatch.setattr("qdqtune.engines.tensorrt._trtexec.find_gpus", lambda: gpus)
        engine = stand_in.engine()
        told = [engine.info(options(device=number)) for number in "012"]
        assert [(info.device, info.isa) for info in told] == [
            ("NVIDIA A", "sm86"),
            ("NVIDIA B", "sm90"),
            ("unknown GPU", "unknown"),
        ]
        engine.open(FLOAT, options(device="1"))
        (cache,) = stand_in.said("--timingCacheFile")
        assert cache.endswith("/cache/qdqtune/timing/trtexec-10.16.1-NVIDIA-B.cache")
        engine.open(INT8, options(device="1", timing_cache="none"))
        assert len(stand_in.said("--timingCacheFile")) == 1

    def test_arguments_say_the_gpu(
        self, stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        gpus = GpuHealth("550.54", "12.4", (Gpu("NVIDIA A", "8.6"), Gpu("NVIDIA B", "9.0")), "")
        monkeypatch.setattr("qdqtune.engines.tensorrt._trtexec.find_gpus", lambda: gpus)
        engine = stand_in.engine()
        for said in (options(args="--device=1"), options(device="1")):
            assert engine.info(said).device == "NVIDIA B"
            engine.open(FLOAT, said)
        engine.open(FLOAT, options(args="--device=0"))
        assert stand_in.said("--device") == ["1"]  # one build for both ways to say it
        caches = stand_in.said("--timingCacheFile")
        assert [cache[-8:] for cache in caches] == ["-B.cache", "-A.cache"]

    @pytest.mark.parametrize(("version", "notes"), [("8.6.1", 0), ("10.16.1", 1), ("11.1.0", 2)])
    def test_the_guides_arguments_hold_for_every_version(
        self, stand_in: StandIn, caplog: pytest.LogCaptureFixture, version: str, notes: int
    ) -> None:
        engine = stand_in.engine(version)
        said = options(args="--fp16 --workspace=4096 --verbose")
        engine.info(said)
        assert len(caplog.records) == notes
        assert notes_on(said.engine_options) == tuple(caplog.messages)
        session = engine.open(FLOAT, said)
        session.set_feeds(FLOAT_FEEDS)
        assert len(session.time_runs(2)) == 2

    def test_what_a_version_lacks_is_told_before_a_build(self, stand_in: StandIn) -> None:
        engine = stand_in.engine("8.6.1")
        with pytest.raises(ValueError, match=r"came with 9\.0"):
            engine.info(options(args="--stronglyTyped"))

    def test_takes_no_threads(self, stand_in: StandIn) -> None:
        with pytest.raises(ValueError, match="threads"):
            stand_in.engine().info(SessionOptions(threads=1))

    def test_a_program_may_lie_anywhere(self, stand_in: StandIn) -> None:
        engine = stand_in.engine("11.1.0")
        path = str(stand_in.folder / "11.1.0" / "trtexec")
        assert engine.info(options(path=path)).version == "11.1.0"


class TestBuilds:
    @pytest.mark.parametrize("version", ["8.4.3", "8.6.1", "10.3.0", "10.16.1", "11.1.0"])
    def test_all_versions_time_models_and_layers(self, stand_in: StandIn, version: str) -> None:
        session = stand_in.engine(version).open(INT8, options())
        session.set_feeds(INT8_FEEDS)
        samples = session.time_runs(7)
        assert len(set(samples)) == 7
        layers = session.layer_times(3)
        assert sum(layer.ms for layer in layers) == pytest.approx(min(samples), rel=0.2)
        assert "int8" in {layer.precision for layer in layers}

    def test_what_was_built_is_not_built_again(self, stand_in: StandIn) -> None:
        engine = stand_in.engine()
        engine.open(FLOAT, options())
        engine.open(FLOAT, options()).close()
        assert len(stand_in.calls) == 1
        engine.open(FLOAT, options(level="5"))
        assert len(stand_in.calls) == 2

    @pytest.mark.parametrize("flag", ["plugins", "dynamicPlugins", "setPluginsToSerialize"])
    def test_a_library_that_changed_is_another(
        self, stand_in: StandIn, tmp_path: Path, flag: str
    ) -> None:
        library = tmp_path / "ops.so"
        engine = stand_in.engine()
        said = options(args=f"--{flag}={library} --{flag}=on.the.loaders.path.so")
        for content, builds in (("old", 1), ("old", 1), ("newer", 2)):
            if not library.exists() or library.read_text() != content:
                library.write_text(content)
            engine.open(FLOAT, said)
            assert len(stand_in.calls) == builds

    def test_what_was_built_outlives_the_engine(self, stand_in: StandIn, tmp_path: Path) -> None:
        kept = options(plan_cache=str(tmp_path / "plans"))
        stand_in.engine().open(FLOAT, kept).close()
        layers = tmp_path / "layers.json"
        again = SessionOptions(engine_options=kept.engine_options, optimized_model_path=str(layers))
        session = stand_in.engine().open(FLOAT, again)
        assert len(stand_in.calls) == 1
        assert read_layer_info(layers)
        stand_in.engine("11.1.0").open(FLOAT, kept)  # another version
        assert len(stand_in.calls) == 2
        session.close()

    def test_layers_are_written(self, stand_in: StandIn, tmp_path: Path) -> None:
        path = tmp_path / "layers.json"
        stand_in.engine().open(FLOAT, SessionOptions(optimized_model_path=str(path)))
        assert "conv0" in str(read_layer_info(path))

    @pytest.mark.parametrize(
        ("fault", "reason"),
        [
            ("build_fails", r"build fp32\.onnx.*Could not find any implementation"),
            ("empty_engine", r"fp32\.onnx, but wrote no engine"),
        ],
    )
    def test_a_failure_has_the_reason_and_leaves_no_files(
        self, stand_in: StandIn, tmp_path: Path, fault: str, reason: str
    ) -> None:
        with pytest.raises(TrtexecError, match=reason):
            stand_in.engine(fault=fault).open(FLOAT, options())
        assert list((tmp_path / "scratch").iterdir()) == []

    def test_a_failure_leaves_what_was_built_before(
        self, stand_in: StandIn, tmp_path: Path
    ) -> None:
        stand_in.engine().open(FLOAT, options())
        plans = tmp_path / "scratch" / "plans"
        (layers,) = plans.glob("*.layers.json")
        layers.unlink()  # so that it is built once more
        with pytest.raises(TrtexecError):
            stand_in.engine(fault="build_fails").open(FLOAT, options())
        (kept,) = plans.glob("*.plan")
        assert kept.stat().st_size > 0

    def test_the_log_has_commands_and_output(self, stand_in: StandIn, tmp_path: Path) -> None:
        session = stand_in.engine().open(FLOAT, options())
        session.set_feeds(FLOAT_FEEDS)
        session.time_runs(1)
        text = (tmp_path / "logs" / "trtexec" / "fp32.log").read_text()
        assert text.count("\n&&&& PASSED") == 2
        assert f"/trtexec --onnx={FLOAT} --saveEngine=" in text

    def test_settings_reach_the_program(self, stand_in: StandIn, tmp_path: Path) -> None:
        cache = tmp_path / "new folder" / "timing.cache"
        engine = stand_in.engine("10.16.1")
        session = engine.open(FLOAT, options(timing_cache=str(cache), args="--verbose", level="1"))
        session.set_feeds(FLOAT_FEEDS)
        session.time_runs(1)
        assert cache.exists()
        assert stand_in.said("--timingCacheFile") == [str(cache)]
        assert stand_in.said("--builderOptimizationLevel") == ["1"]
        assert all("--verbose" in call for call in stand_in.calls)


class TestShapes:
    def test_a_static_model_is_given_none(self, stand_in: StandIn) -> None:
        session = stand_in.engine().open(FLOAT, options(opt_shapes="x:1x8x16x16"))
        session.set_feeds(FLOAT_FEEDS)
        session.time_runs(1)
        assert not [name for call in (0, 1) for name in stand_in.names(call) if "hapes" in name]

    def test_an_open_model_is_built_when_it_is_fed(self, stand_in: StandIn) -> None:
        session = stand_in.engine().open(OPEN, options())
        assert session.inputs[0].shape[1:] == (8, 16, 16)
        session.set_feeds(rows(2))
        session.set_feeds(rows(2))
        assert len(stand_in.calls) == 1
        session.set_feeds(rows(8))  # another range
        session.set_feeds(rows(4))  # in between
        session.time_runs(1)
        assert stand_in.said("--minShapes") == ["x:2x8x16x16", "x:2x8x16x16"]
        assert stand_in.said("--optShapes") == ["x:2x8x16x16", "x:8x8x16x16"]
        assert stand_in.said("--maxShapes") == ["x:2x8x16x16", "x:8x8x16x16"]
        assert stand_in.said("--shapes") == ["x:4x8x16x16"]

    def test_known_ones_are_built_at_once(self, stand_in: StandIn) -> None:
        said = options(min_shapes="x:1x8x16x16", opt_shapes="x:2x8x16x16", max_shapes="x:4x8x16x16")
        session = stand_in.engine().open(OPEN, said)
        assert len(stand_in.calls) == 1
        session.set_feeds(rows(3))
        assert len(stand_in.calls) == 1
        with pytest.raises(ValueError, match="not between"):
            session.set_feeds(rows(5))

    def test_a_run_leaves_the_engine_of_timed_runs_alone(self, stand_in: StandIn) -> None:
        session = stand_in.engine().open(OPEN, options())
        session.set_feeds(rows(8))
        before = session.time_runs(1)[0]
        assert session.run(rows(1))["y"].shape[0] == 1
        assert session.time_runs(1)[0] == pytest.approx(before, rel=0.1)
        assert stand_in.said("--optShapes") == ["x:8x8x16x16", "x:1x8x16x16"]
        timed = [call for call in stand_in.calls if "--exportTimes" in str(call)]
        assert len({each for call in timed for each in call if "loadEngine" in each}) == 1

    def test_names_that_are_no_inputs(self, stand_in: StandIn) -> None:
        with pytest.raises(ValueError, match="names the input 'z'"):
            stand_in.engine().open(OPEN, options(opt_shapes="z:1"))


class TestUnknownOptions:
    def test_are_left_out_from_then_on(self, stand_in: StandIn) -> None:
        engine = stand_in.engine("8.6.1", without=PROFILING)
        session = engine.open(FLOAT, options())
        session.set_feeds(FLOAT_FEEDS)
        session.time_runs(2)
        engine.open(INT8, options())
        refused = {f"--{name}" for name in PROFILING.split()}
        assert [bool(stand_in.names(call) & refused) for call in range(4)] == [
            True, False, False, False,
        ]  # fmt: skip

    def test_then_there_are_no_layers(self, stand_in: StandIn) -> None:
        session = stand_in.engine(without=PROFILING).open(FLOAT, options())
        session.set_feeds(FLOAT_FEEDS)
        for _ in range(2):
            with pytest.raises(TrtexecError, match="doesn't know --exportProfile"):
                session.layer_times(2)

    def test_names_alone_are_layers(self, stand_in: StandIn) -> None:
        session = stand_in.engine(without="exportLayerInfo").open(FLOAT, options())
        session.set_feeds(FLOAT_FEEDS)
        assert any("conv0" in layer.name for layer in session.layer_times(2))

    @pytest.mark.parametrize("missing", ["exportOutput", "loadInputs"])
    def test_then_there_are_no_outputs(self, stand_in: StandIn, missing: str) -> None:
        session = stand_in.engine(without=missing).open(FLOAT, options())
        with pytest.raises(TrtexecError, match=f"can't report the outputs.*--{missing}"):
            session.run(FLOAT_FEEDS)
        session.set_feeds(FLOAT_FEEDS)
        assert len(session.time_runs(3)) == 3

    def test_then_times_are_those_of_the_summary(self, stand_in: StandIn) -> None:
        session = stand_in.engine(without="exportTimes").open(FLOAT, options())
        session.set_feeds(FLOAT_FEEDS)
        samples = session.time_runs(5)
        assert len(samples) == 5
        assert len(set(samples)) == 1

    @pytest.mark.parametrize("args", ["--frobnicate", "--separateProfileRun"])
    def test_of_the_user_are_the_reason(self, stand_in: StandIn, args: str) -> None:
        engine = stand_in.engine(without=PROFILING)
        with pytest.raises(TrtexecError, match=f"doesn't know the options? .*{args}"):
            engine.open(FLOAT, options(args=args))
        assert len(stand_in.calls) == 1

    def test_may_be_told_one_at_a_time(self, stand_in: StandIn, tmp_path: Path) -> None:
        engine = stand_in.engine()
        missing = ["exportLayerInfo", "profilingVerbosity", "exportTimes", "loadInputs"]
        script = "\n".join(
            fails_with(f"--{name}", f"Unknown option: --{name} ") for name in missing
        )
        said = options(path=stand_in.behind(script))
        for calls in (6, 2):  # each of them is tried once
            session = engine.open(FLOAT if calls == 6 else INT8, said)
            session.set_feeds(FLOAT_FEEDS if calls == 6 else INT8_FEEDS)
            assert len(session.time_runs(2)) == 2
            log = tmp_path / "logs" / "trtexec" / ("fp32.log" if calls == 6 else "r_q_skip.log")
            assert log.read_text().count("\n(exit code ") == calls

    def test_one_at_a_time_of_the_user_is_the_reason(self, stand_in: StandIn) -> None:
        engine = stand_in.engine()
        missing = ["exportLayerInfo", "profilingVerbosity", "noTF32"]
        script = "\n".join(
            fails_with(f"--{name}", f"Unknown option: --{name} ") for name in missing
        )
        with pytest.raises(TrtexecError, match="doesn't know the option --noTF32"):
            engine.open(FLOAT, options(path=stand_in.behind(script), args="--noTF32"))

    def test_that_it_can_not_do_without_are_the_reason(self, stand_in: StandIn) -> None:
        with pytest.raises(TrtexecError, match="doesn't know the option --saveEngine"):
            stand_in.engine(without="saveEngine").open(FLOAT, options())

    def test_a_program_that_loads_no_engine_builds_anew(self, stand_in: StandIn) -> None:
        session = stand_in.engine(without="loadEngine").open(FLOAT, options())
        session.set_feeds(FLOAT_FEEDS)
        for _ in range(2):
            assert len(session.time_runs(2)) == 2
        loaded = ["--loadEngine" in stand_in.names(call) for call in range(4)]
        assert loaded == [False, True, False, False]

    @pytest.mark.parametrize("error", ["Model missing or format not recognized", "Whatever"])
    def test_no_engine_is_loaded_whatever_it_says(self, stand_in: StandIn, error: str) -> None:
        engine = stand_in.engine()
        said = options(path=stand_in.behind(fails_with("--loadEngine", error)))
        session = engine.open(FLOAT, said)
        session.set_feeds(FLOAT_FEEDS)
        for _ in range(2):
            assert len(session.time_runs(2)) == 2
        assert ["--onnx" in stand_in.names(call) for call in range(3)] == [True] * 3

    def test_a_run_that_fails_either_way_has_the_first_reason(self, stand_in: StandIn) -> None:
        engine = stand_in.engine(fault="inference_fails")
        said = options(path=stand_in.behind(fails_with("--loadEngine", "First words")))
        session = engine.open(FLOAT, said)
        session.set_feeds(FLOAT_FEEDS)
        with pytest.raises(TrtexecError, match="First words"):
            session.time_runs(2)
        assert len(stand_in.calls) == 2


class TestRemoteAutotuning:
    def test_is_built_for_the_safety_runtime(self, stand_in: StandIn) -> None:
        session = stand_in.engine().open(FLOAT, options(args="--remoteAutoTuningConfig=ssh://h"))
        session.set_feeds(FLOAT_FEEDS)
        assert len(session.time_runs(2)) == 2
        assert {"--remoteAutoTuningConfig", "--safe"} <= stand_in.names(0)
        assert "--safe" in stand_in.names(1)
        with pytest.raises(TrtexecError, match="no layers with --safe"):
            session.layer_times(2)
        assert len(stand_in.calls) == 2


class TestTimingCache:
    def test_that_is_spoilt_is_not_used_again(self, stand_in: StandIn, tmp_path: Path) -> None:
        engine = stand_in.engine()
        why = "Could not find any implementation for node c."
        path = stand_in.behind(fails_with("--timingCacheFile", why))
        cache = tmp_path / "timing.cache"
        cache.write_bytes(b"of another time")
        said = options(path=path, timing_cache=str(cache))
        for model in (FLOAT, INT8):
            engine.open(model, said)
        assert len(stand_in.calls) == 2
        log = (tmp_path / "logs" / "trtexec" / "r_q_skip.log").read_text()
        assert "timingCacheFile" not in log


class TestFeeds:
    @pytest.fixture
    def integers(self, tmp_path: Path) -> str:
        model = onnx.parser.parse_model(
            '<ir_version: 9, opset_import: ["" : 17]> '
            "g (int64[3] a, int64[3] b) => (int64[3] y) { y = Add(a, b) }"
        )
        path = tmp_path / "integers.onnx"
        onnx.save(model, path)
        return str(path)

    @pytest.mark.parametrize(("version", "size"), [("8.6.1", 12), ("10.16.1", 24)])
    def test_are_written_in_the_types_that_there_are(
        self, stand_in: StandIn, tmp_path: Path, integers: str, version: str, size: int
    ) -> None:
        session = stand_in.engine(version).open(integers, options())
        session.set_feeds({name: np.arange(3, dtype=np.int64) for name in "ab"})
        written = list((tmp_path / "scratch").glob("*/timed*.bin"))
        assert [path.stat().st_size for path in written] == [size, size]
        session.close()
        assert not list((tmp_path / "scratch").glob("*/timed*.bin"))

    def test_are_needed(self, stand_in: StandIn) -> None:
        session = stand_in.engine().open(FLOAT, options())
        with pytest.raises(ValueError, match="no feeds"):
            session.time_runs(1)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends children with their parent")
def test_trtexec_ends_with_its_parent(tmp_path: Path) -> None:
    script = (
        "import sys\n"
        "from qdqtune.engines.tensorrt._trtexec_program import run_command\n"
        "run_command(['/bin/sh', '-c', f'echo $$ > {sys.argv[1]}; exec sleep 60'])"
    )
    told = tmp_path / "pid"
    with subprocess.Popen([sys.executable, "-c", script, str(told)]) as parent:
        _wait_for(lambda: told.exists() and told.read_text().strip())
        child = int(told.read_text())
        assert os.getpgid(child) == os.getpgid(parent.pid)
        os.kill(parent.pid, signal.SIGKILL)
    _wait_for(lambda: not _is_alive(child))


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def _wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
