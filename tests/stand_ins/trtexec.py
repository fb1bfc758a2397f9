"""A stand-in for NVIDIA's `trtexec`, for tests: it needs no GPU, and makes all its times up.

Variables of the environment say what it is: STAND_IN_TRT_VERSION, STAND_IN_TRT_FAULT,
STAND_IN_TRT_WITHOUT, STAND_IN_TRT_CALLS, STAND_IN_TRT_SEED. See README.md beside it.
"""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import time
from pathlib import Path
from typing import NoReturn

from tests.stand_ins.trtexec_console import Console
from tests.stand_ins.trtexec_echo import echo
from tests.stand_ins.trtexec_faults import Faults
from tests.stand_ins.trtexec_inference import (
    Engine,
    InferenceError,
    Times,
    check_inputs,
    outputs_file,
    summary,
    times_file,
)
from tests.stand_ins.trtexec_layers import layer_info, profile
from tests.stand_ins.trtexec_options import ArgumentError, Options, Version, help_text

_STREAMED_SINCE = (10, 13)


class StandIn:
    """One run of the program.

    Args:
        arguments: The program's name and what follows.
        environment: Variables.
    """

    def __init__(self, arguments: list[str], environment: dict[str, str]) -> None:
        text = environment.get("STAND_IN_TRT_VERSION", "10.16.1")
        self.version: Version = tuple(map(int, text.split(".")))
        self.arguments = arguments
        self.faults = Faults(environment.get("STAND_IN_TRT_FAULT", ""))
        self.console = Console(self.version, arguments)
        self._without = environment.get("STAND_IN_TRT_WITHOUT", "").replace(",", " ").split()
        self._seed = environment.get("STAND_IN_TRT_SEED", "")
        calls = environment.get("STAND_IN_TRT_CALLS")
        self._number = os.getpid() if calls is None else _write_call(calls, arguments)

    def run(self) -> int:
        """Does what the arguments say; returns the exit code."""
        self.console.banner("RUNNING")
        rest = self.arguments[1:]
        if not rest or "--help" in rest or "-h" in rest:
            self.console.write(help_text(self.version) + "\n")
            return 0
        if self.faults.no_gpu:
            return self._without_gpu()
        try:
            self.options = options = Options(rest, self.version, self._without)
        except ArgumentError as error:
            self.console.write(help_text(self.version) + "\n")
            self.console.errors(str(error))
            if self.version < (11, 1):
                self.console.banner("FAILED")
            return 1
        echo(self.console, options, self.version)
        engine, model = self._build() if options.has("onnx") else self._load()
        if self.faults.strikes("huge_log"):
            self._long_log()
        self._tell_layers(engine, run=not self._skips_inference())
        if self._skips_inference():
            self.console.info("Skipped inference phase since --skipInference is added.")
        else:
            self._infer(engine, model)
        self.console.banner("PASSED")
        return 0

    def _build(self) -> tuple[Engine, bytes]:
        from tests.stand_ins.trtexec_builder import Builders  # brings onnx

        path = self.options.text("onnx")
        self.faults.model = os.path.basename(path)
        builders = Builders(self.options, self.version, self.console.info, self.console.warning)
        self.console.info("Start parsing network model.")
        parsed = builders.parse(path)
        if isinstance(parsed, str):
            self.console.errors(parsed)
            self.console.errors("Failed to parse onnx file")
            self.console.info("Finished parsing network model. Parse time: 0.00123")
            self._set_up_failed("Parsing model failed")
        self.console.info("Finished parsing network model. Parse time: 0.0162636")
        wrong = builders.set_shapes()
        if wrong:
            self.console.errors(wrong)
            self._set_up_failed("Network And Config setup failed", "Building engine failed")
        self._strike_while_building()
        start = time.perf_counter()
        found = builders.build()
        if isinstance(found, tuple):
            self._build_failed(*found)
        self._timing_cache()
        content = json.dumps(found).encode() + b"\n"
        model = Path(path).read_bytes()
        target = self.options.text("saveEngine")
        if target:
            empty = self.faults.strikes("empty_engine")
            Path(target).write_bytes(b"" if empty else content + model)
        if self.version >= (9,):
            self.console.info(f"Created engine with size: {len(content) / 2**20:g} MiB")
        self.console.info(f"Engine built in {time.perf_counter() - start:g} sec.")
        return found, model

    def _load(self) -> tuple[Engine, bytes]:
        path = self.options.text("loadEngine")
        try:
            with open(path, "rb") as file:
                engine = json.loads(file.readline())
                model = file.read() if self.options.has("exportOutput") else b""
            told = tuple(engine["version"])
        except OSError:
            self.console.errors(f"Error opening engine file: {path}")
            self._set_up_failed()
        except (ValueError, KeyError, TypeError):
            self.console.errors(
                "Error[1]: [runtime.cpp::parsePlan::314] Error Code 1: Serialization "
                "(Serialization assertion plan->header.magicTag == rt::kPLAN_MAGIC_TAG failed.)\n"
                "Engine deserialization failed"
            )
            self._set_up_failed()
        if told != self.version:
            self.console.errors(
                "Error[1]: [stdArchiveReader.cpp::StdArchiveReader::32] Error Code 1: "
                "Serialization (Serialization assertion stdVersionRead == serializationVersion "
                "failed.Version tag does not match.)\nEngine deserialization failed"
            )
            self._set_up_failed()
        self.faults.model = engine["model"]
        self.console.info(f"[TRT] Loaded engine size: {os.path.getsize(path) >> 20} MiB")
        self.console.info("Engine deserialized in 0.0018 sec.")
        return engine, model

    def _infer(self, engine: Engine, model: bytes) -> None:
        options = self.options
        shapes = self._inference_shapes(engine)
        if self.version >= (11,) or options.has("useCudaGraph"):
            self.console.info("Capturing CUDA graph for the current execution context")
            self.console.info("Successfully captured CUDA graph for the current execution context")
        files = options.loaded_inputs()
        for value in engine["inputs"]:
            name = value["name"]
            kind = "values loaded from " + files[name] if name in files else "random values"
            self.console.info(f"Using {kind} for input {name}")
        self.console.info("Starting inference")
        self._strike_while_running()
        seed = f"{self._seed}/{engine['digest']}/{self._number}"
        try:
            check_inputs(engine, shapes, files)
            times = Times(engine, shapes, seed)
            if options.has("exportOutput"):
                text = outputs_file(engine, model, shapes, files, seed)
                Path(options.text("exportOutput")).write_text(text)
        except InferenceError as error:
            self.console.errors(f"Uncaught exception detected: {error}")
            self.console.banner("FAILED")
            self._exit(1)
        profiled = options.has("exportProfile") or options.has("dumpProfile")
        separate = self.version >= (11,) or options.has("separateProfileRun")
        iterations = int(options.number("iterations", 10))
        if profiled and not separate:
            self.console.info(
                "The e2e network timing is not reported since it is inaccurate due to the extra "
                "synchronizations when the profiler is enabled."
            )
        elif not self.faults.strikes("no_summary"):
            self._report(times.runs_ms(iterations, max(options.number("duration", 3), 0.0)))
        if profiled:
            self._profile(engine, times, max(iterations, 10))

    def _report(self, runs_ms: list[float]) -> None:
        if self.faults.strikes("nan_latency"):
            runs_ms = [math.nan] * len(runs_ms)
        warm_up = self.options.number("warmUp", 200)
        self.console.info(f"Warmup completed 10 queries over {warm_up:g} ms")
        total_s = sum(runs_ms) / 1000.0
        self.console.info(f"Timing trace has {len(runs_ms)} queries over {total_s:g} s")
        averaged = max(int(self.options.number("avgRuns", 10)), 1)
        for line in summary(runs_ms, self.version, averaged):
            if line.startswith("GPU Compute Time") and self.faults.strikes("interleaved"):
                # What has no line end yet is cut by what goes to the other stream.
                half = len(line) // 3
                self.console.info(line[:half], end="")
                self.console.warning(
                    "* GPU compute time is unstable, with coefficient of variance = 9%."
                )
                self.console.write(f"{line[half:]}\n")
                continue
            self.console.info(line)
        if self.options.has("exportTimes"):
            text = times_file(runs_ms)
            Path(self.options.text("exportTimes")).write_text(text)

    def _profile(self, engine: Engine, times: Times, runs: int) -> None:
        text = profile(engine["layers"], times.profile_ms(runs), self.version)
        if self.options.has("dumpProfile"):
            self.console.info(f"=== Profile ({runs} iterations ) ===")
        if not self.options.has("exportProfile") or self.faults.strikes("no_profile"):
            return
        if self.faults.strikes("truncated_profile"):
            text = text[: len(text) * 2 // 3]
        Path(self.options.text("exportProfile")).write_text(text)

    def _tell_layers(self, engine: Engine, *, run: bool) -> None:
        detailed = engine["verbosity"] == "detailed"
        text = layer_info(engine, self.version, detailed=detailed, run=run)
        if self.options.has("dumpLayerInfo"):
            self.console.info("Layer Information:")
            self.console.info("Layers:\n" + "\n".join(layer["name"] for layer in engine["layers"]))
        if self.options.has("exportLayerInfo"):
            if self.faults.strikes("truncated_layers"):
                text = text[: len(text) * 2 // 3]
            Path(self.options.text("exportLayerInfo")).write_text(text)

    def _inference_shapes(self, engine: Engine) -> dict[str, list[int]]:
        options = self.options
        requested = options.shapes or options.opt_shapes or options.max_shapes or options.min_shapes
        found = {}
        for value in engine["inputs"]:
            name, dims = value["name"], value["dims"]
            if -1 not in dims:
                found[name] = dims
                continue
            shape = list(requested.get(name, ()))
            if name not in requested:
                shape = [max(dim, 1) for dim in dims]
                sizes = "x".join(map(str, shape))
                self.console.warning(
                    f"Shape missing for input with dynamic shape: {name}Automatically setting "
                    f"shape to: {sizes}"
                )
            inside = len(shape) == len(dims) and all(
                low <= size <= high
                for low, size, high in zip(value["min"], shape, value["max"], strict=True)
            )
            if not inside:
                self.console.errors(
                    "Error[3]: IExecutionContext::setInputShape: Error Code 3: API Usage Error "
                    f"(Parameter check failed, condition: satisfyProfile. Set dimension {shape} "
                    f"for tensor {name} does not satisfy any optimization profiles.)\n"
                    "Set up inference failed"
                )
                self.console.banner("FAILED")
                self._exit(1)
            found[name] = shape
            self.console.info(f"Set shape of input tensor {name} to: {'x'.join(map(str, shape))}")
        return found

    def _strike_while_building(self) -> None:
        if self.faults.strikes("segfault"):
            self._die()
        if self.faults.strikes("hang"):
            self._hang()
        if self.faults.strikes("out_of_memory"):
            self._build_failed(
                2, "OutOfMemory (Requested size was 34359738368 bytes.)", kind="OutOfMemory"
            )
        if self.faults.strikes("build_fails") or self.faults.strikes("streamed_build_fails"):
            self._build_failed(10, "Could not find any implementation for node n0 + n1.")
        if self.faults.strikes("exits_zero_but_failed"):
            self.console.errors("Engine could not be created from network\nBuilding engine failed")
            self.console.banner("FAILED")
            self._exit(0)

    def _strike_while_running(self) -> None:
        if self.faults.strikes("segfault_in_run"):
            self._die()
        if self.faults.strikes("hang_in_run"):
            self._hang()
        if self.faults.strikes("inference_fails") or self.faults.strikes("out_of_memory_in_run"):
            if self.faults.strikes("out_of_memory_in_run"):
                self.console.errors(
                    "Error[2]: [defaultAllocator.cpp::allocate::61] Error Code 2: OutOfMemory "
                    "(Requested size was 2147483648 bytes.)"
                )
            self.console.errors("Error occurred during inference")
            self.console.banner("FAILED")
            self._exit(1)

    def _build_failed(self, code: int, text: str, kind: str = "Internal Error") -> NoReturn:
        where = "[optimizer.cpp::computeCosts::1855]"
        if self.version >= (10,):
            where = "IBuilder::buildSerializedNetwork:"
        what = text if text.startswith(kind) else f"{kind} ({text})"
        self.console.errors(f"Error[{code}]: {where} Error Code {code}: {what}")
        target = self.options.text("saveEngine")
        if target and self.version >= _STREAMED_SINCE:
            Path(target).write_bytes(b"")
            self.console.info("Created engine with size: 0 MiB")
            self.console.info("Engine built in 0.0314 sec.")
            self.console.errors(
                'Assertion failure: false && "Attempting to access an empty engine!"'
            )
            self._exit(1)
        self._set_up_failed("Engine could not be created from network", "Building engine failed")

    def _set_up_failed(self, *lines: str) -> NoReturn:
        for line in (*lines, "Failed to create engine from model or file.", "Engine set up failed"):
            self.console.errors(line)
        self.console.banner("FAILED")
        self._exit(1)

    def _without_gpu(self) -> int:
        if self.version < (10,):
            self.console.errors("Cannot find any available devices (GPUs)!")
            self.console.banner("FAILED")
            return 1
        text = "CUDA driver version is insufficient for CUDA runtime version"
        self.console.complain(f"Cuda failure at sampleDevice.cpp:48: {text}\n")
        return 1

    def _timing_cache(self) -> None:
        path = self.options.text("timingCacheFile")
        if not path:
            return
        if not os.path.exists(path):
            self.console.warning(
                f"Could not read cache from: {path}. A new cache will be generated and written."
            )
        lock = Path(f"{path}.lock")
        lock.touch()
        with open(path, "ab") as file:
            file.write(f"{self.faults.model}\n".encode())

    def _skips_inference(self) -> bool:
        return self.options.has("skipInference") or self.options.has("buildOnly")

    def _die(self) -> NoReturn:
        sys.stdout.flush()
        os.kill(os.getpid(), signal.SIGSEGV)
        raise AssertionError

    def _hang(self) -> None:
        sys.stdout.flush()
        time.sleep(600)

    def _long_log(self) -> None:
        line = f"Tactic: 0x1234 Time: 0.0123 {'of a stand-in ' * 8}"
        for _ in range(5 * 2**20 // len(line)):
            self.console.verbose(line)

    def _exit(self, code: int) -> NoReturn:
        raise SystemExit(code)


def main() -> None:
    """Runs the program."""
    sys.stdout.reconfigure(encoding="utf-8")  # type: ignore[union-attr]
    sys.stderr.reconfigure(encoding="utf-8")  # type: ignore[union-attr]
    raise SystemExit(StandIn(sys.argv, dict(os.environ)).run())


def _write_call(path: str, arguments: list[str]) -> int:
    """Adds a call to the file of them; returns its number."""
    with open(path, "a+") as file:
        file.write(json.dumps(arguments) + "\n")
        file.seek(0)
        return sum(1 for _ in file)
