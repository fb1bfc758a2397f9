from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from qdqtune.engines.tensorrt._trtexec import last_times_ms, parse_outputs
from qdqtune.engines.tensorrt._trtexec_program import (
    Program,
    TrtexecError,
    Version,
    gpu_median_ms,
    has_passed,
    reason_of,
    run_command,
    unknown_options,
)

DATA = Path(__file__).parents[1] / "data" / "tensorrt"
STAMP = "[07/07/2026-02:11:29] "
FIELDS = "min = 0.01 ms, max = 9 ms, mean = 0.5 ms, median = {} ms, percentile(99%) = 0.1 ms"
TAIL = (
    "Failed to create engine from model or file.",
    "Engine set up failed",
)


def summary(median: str) -> str:
    lines = [
        "[I] === Performance summary ===",
        "[I] Throughput: 24896.9 qps",
        f"[I] Latency: {FIELDS.format(77)}",
        f"[I] Enqueue Time: {FIELDS.format(78)}",
        f"[I] H2D Latency: {FIELDS.format(79)}",
        f"[I] GPU Compute Time: {FIELDS.format(median)}",
        f"[I] D2H Latency: {FIELDS.format(80)}",
        "[I] Total Host Walltime: 3.00005 s",
        "[I] Total GPU Compute Time: 2.89541 s",
        "[V] GPU Compute Time: the GPU latency to execute the kernels for a query, median = 5 ms.",
    ]
    return "\n".join(STAMP + line for line in lines)


def errors(*messages: str) -> str:
    return "\n".join(f"{STAMP}[E] {message}" for message in messages)


class TestMedian:
    @pytest.mark.parametrize("median", ["0.0388184", "1e-05", "12", "1.5e+02"])
    def test_is_the_one_of_gpu_compute_time(self, median: str) -> None:
        assert gpu_median_ms(summary(median)) == float(median)

    @pytest.mark.parametrize("median", ["nan", "-nan", "inf"])
    def test_of_nonsense_is_told(self, median: str) -> None:
        found = gpu_median_ms(summary(median))
        assert found is not None
        assert not math.isfinite(found)

    @pytest.mark.parametrize("text", ["", summary("1").replace("[I] GPU", "[V] GPU")])
    def test_is_none_without_a_summary(self, text: str) -> None:
        assert gpu_median_ms(text) is None

    def test_of_real_logs_without_one(self) -> None:
        text = (DATA / "trt1016" / "result-04.log").read_text()
        assert has_passed(text)
        assert gpu_median_ms(text) is None


class TestReasons:
    def test_node_that_can_not_be_parsed(self) -> None:
        text = errors(
            '[TRT] ModelImporter.cpp:140: While parsing node number 0 [QuantizeLinear -> "xq_q"]:',
            "[TRT] ModelImporter.cpp:142: --- Begin node ---",
            'input: "x"\nname: "xq_Q"\nop_type: "QuantizeLinear"\nattribute {\n  name: "axis"\n}',
            "[TRT] ModelImporter.cpp:143: --- End node ---",
            "[TRT] ModelImporter.cpp:151: ERROR: onnxOpImporters.cpp:1929 In function f:\n"
            "[6] Assertion failed: shiftIsAllZeros(zeroPoint): Non-zero zero point is bad.",
            "Failed to parse onnx file",
            "Parsing model failed",
            *TAIL,
        )
        reason = reason_of(text, 1)
        assert "node 'xq_Q' [QuantizeLinear -> \"xq_q\"]" in reason
        assert reason.endswith("Non-zero zero point is bad.")

    @pytest.mark.parametrize(
        ("messages", "expected"),
        [
            (
                ["Error[10]: IBuilder::buildSerializedNetwork: Error Code 10: Internal Error "
                 "(Could not find any implementation for node conv1.weight + QuantizeLinear_7.)",
                 "Engine could not be created from network", "Building engine failed"],
                "Could not find any implementation for node conv1.weight + QuantizeLinear_7",
            ),
            (
                ["Error[10]: Could not find any implementation for node c.",
                 'Assertion failure: false && "Attempting to access an empty engine!"'],
                "Error[10]: Could not find any implementation for node c.",
            ),
            (["Error[2]: Error Code 2: OutOfMemory (Requested size was 9 bytes.)"], "OutOfMemory"),
            (
                ['Cannot find input tensor with name "z" in the network inputs! Please make sure '
                 "the input tensor names are correct.", "Network And Config setup failed"],
                'Cannot find input tensor with name "z"',
            ),
            (["Static model does not take explicit shapes since"], "Static model does not take"),
            (["Unknown profilingVerbosity: x"], "Unknown profilingVerbosity: x"),
            (["Error occurred during inference"], "Error occurred during inference"),
        ],
    )  # fmt: skip
    def test_first_telling_error(self, messages: list[str], expected: str) -> None:
        reason = reason_of(errors(*messages, *TAIL), 1)
        assert expected in reason
        assert "Engine set up failed" not in reason
        assert "empty engine" not in reason

    @pytest.mark.parametrize(
        "line",
        [
            "Cuda failure at sampleDevice.cpp:48: no CUDA-capable device is detected",
            f"{STAMP}[E] Cannot find any available devices (GPUs)!",
            "trtexec: error while loading shared libraries: libnvinfer.so.10: cannot open",
        ],
    )
    def test_no_gpu_or_library(self, line: str) -> None:
        assert line.removeprefix(f"{STAMP}[E] ") in reason_of(f"banner\n{line}\n", 1)

    def test_unknown_options_come_before_all(self) -> None:
        text = f"{errors('Unknown option: --foo bar', 'Unknown option: --baz ')}\n=== Help ==="
        assert unknown_options(text) == {"--foo", "--baz"}
        assert reason_of(text, 1) == "it doesn't know the options --baz, --foo"

    def test_signals(self) -> None:
        assert reason_of("", -11) == "it was ended by SIGSEGV"
        assert reason_of(errors("Out of luck"), -9) == "it was ended by SIGKILL: Out of luck"

    def test_without_any(self) -> None:
        assert "code 3: the last words" in reason_of("much\nthe last words\n&&&& FAILED x", 3)
        assert reason_of("", 1) == "it ended with code 1: it printed nothing"
        assert "without saying that it passed" in reason_of("", 0)

    def test_only_consequences_are_better_than_nothing(self) -> None:
        assert reason_of(errors(*TAIL), 1) == TAIL[0]

    def test_long_ones_are_cut(self) -> None:
        assert len(reason_of(errors("x" * 10_000), 1)) < 1000


class TestFiles:
    @pytest.mark.parametrize(
        ("times", "median", "expected"),
        [
            ([0.5, 0.51, 0.52], "0.51", [0.5, 0.51, 0.52]),
            ([9, 9, 9, 0.5, 1e-05, 0.5], "0.5", [0.5, 1e-05, 0.5]),  # warm-up before them
            ([0.5, 0.5, 0.5], "0.52", None),
            ([0.5, 0.5], "0.5", None),
            ([0.5, 0.5, 0.5], "nan", None),
        ],
    )
    def test_times(self, times: list[float], median: str, expected: list[float] | None) -> None:
        entries = [f'{{ "startEnqMs" : 0, "computeMs" : {ms:g}, "d2hMs" : 7 }}' for ms in times]
        text = "[\n  " + "\n, ".join(entries) + "\n]\n"
        assert last_times_ms(text, 3, float(median)) == expected

    @pytest.mark.parametrize("text", ["", "{}", "[1]", '[{"d2hMs": 1}]', '[{ "computeMs" : 1'])
    def test_broken_times(self, text: str) -> None:
        assert last_times_ms(text, 1, 1.0) is None

    def test_outputs(self) -> None:
        text = (
            '[\n  { "name" : "a "quoted\\ name"\n  , "dimensions" : "2x2"\n'
            '  , "values" : [ 1, -nan, inf, 1e-05 ]\n  }\n'
            ', { "name" : "i"\n  , "dimensions" : "1"\n  , "values" : [ 9007199254740993 ]\n  }\n'
            ', { "name" : "s"\n  , "dimensions" : ""\n  , "values" : [ 1 ]\n  }\n'
            ', { "name" : "none"\n  , "dimensions" : "0x3"\n  , "values" : [  ]\n  }\n]\n'
        )
        dtypes = {"i": "int64", 'a "quoted\\ name': "bfloat16", "s": "bool", "none": "float32"}
        found = parse_outputs(text, dtypes)
        assert list(found) == list(dtypes)
        assert {name: array.dtype.name for name, array in found.items()} == dtypes
        assert found["i"].tolist() == [9007199254740993]
        assert found["s"].shape == ()
        assert bool(found["s"]) is True
        assert found["none"].shape == (0, 3)
        values = found['a "quoted\\ name'].astype(np.float32)
        assert values.shape == (2, 2)
        assert np.isnan(values[0, 1])
        assert values[1, 0] == math.inf

    @pytest.mark.parametrize("dims", ["3", "2x2"])
    def test_outputs_that_do_not_add_up(self, dims: str) -> None:
        text = f'[ {{ "name" : "y", "dimensions" : "{dims}", "values" : [ 1, 2 ] }} ]'
        with pytest.raises(ValueError, match="2 values of the output 'y'"):
            parse_outputs(text, {"y": "float32"})

    def test_outputs_that_are_missing(self) -> None:
        with pytest.raises(ValueError, match="no output 'y'"):
            parse_outputs("[\n]\n", {"y": "float32"})


def shell(script: str) -> list[str]:
    return ["/bin/sh", "-c", script]


class TestProgram:
    @pytest.mark.parametrize(
        ("script", "reason"),
        [
            ("echo '&&&& PASSED x'; exit 1", "it ended with code 1"),
            ("exit 0", "without saying that it passed"),
            ("echo '&&&& PASSED x'; kill -SEGV $$", "ended by SIGSEGV"),
        ],
    )
    def test_success_is_code_and_words(self, tmp_path: Path, script: str, reason: str) -> None:
        path = tmp_path / "trtexec"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        with pytest.raises(TrtexecError, match=reason):
            Program(str(path), Version(10)).call(["--onnx=m"])


class TestRunning:
    def test_streams_are_merged_and_logged(self, tmp_path: Path) -> None:
        log = tmp_path / "x.log"
        finished = run_command(shell("echo out; echo err >&2; exit 3"), log)
        assert finished.code == 3
        assert finished.text.split() == ["out", "err"]
        text = log.read_text()
        assert text.startswith("$ /bin/sh -c 'echo out;")
        assert "out\nerr\n" in text
        assert "exit code 3" in text

    def test_a_line_that_is_cut_by_another_is_whole_again(self, tmp_path: Path) -> None:
        whole = f"{STAMP}[I] GPU Compute Time: {FIELDS.format('0.25')}"
        script = tmp_path / "printed"
        script.write_text(f"{whole[:60]}{STAMP}[W] it is unstable\n{whole[60:]}\n")
        finished = run_command(["/bin/cat", str(script)])
        assert gpu_median_ms(finished.text) == 0.25

    def test_an_error_behind_half_a_line_is_found(self, tmp_path: Path) -> None:
        script = tmp_path / "printed"
        script.write_text(f"{STAMP}[I] Average on 10{STAMP}[E] Out of luck\n&&&& FAILED x\n")
        finished = run_command(["/bin/cat", str(script)])
        assert reason_of(finished.text, 1) == "Out of luck"

    def test_much_output_is_bounded(self, tmp_path: Path) -> None:
        log = tmp_path / "x.log"
        verbose = f"{STAMP}[V] [TRT] {'tactic ' * 100}"
        printed = tmp_path / "printed"
        block = "\n".join([verbose] * 10_000)
        printed.write_text(
            f"{block}\n{errors('Out of luck')}\n{block}\n{'x' * 10**6}\n&&&& FAILED trtexec\n"
        )
        finished = run_command(["/bin/cat", str(printed)], log)
        assert len(finished.text) < 20_000
        assert reason_of(finished.text, 1).startswith("Out of luck")
        assert log.stat().st_size <= 4 << 20

    def test_a_log_that_can_not_be_written_spoils_nothing(self, tmp_path: Path) -> None:
        finished = run_command(shell("echo fine"), tmp_path / "nowhere" / "x.log")
        assert finished.text.strip() == "fine"
