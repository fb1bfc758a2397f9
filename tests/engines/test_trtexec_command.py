from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from qdqtune.engines._interface import SessionOptions
from qdqtune.engines.tensorrt._settings import ShapeRange
from qdqtune.engines.tensorrt._trtexec_arguments import (
    TrtexecSettings,
    build_arguments,
    build_command,
    feed_arguments,
    joined,
    load_arguments,
    output_arguments,
    profile_arguments,
    rebuild_arguments,
    time_arguments,
    trtexec_settings,
)
from qdqtune.engines.tensorrt._trtexec_program import Version

VERSIONS = {
    text: Version(*map(int, text.split(".")))
    for text in ("8.4.3", "8.6.1", "9.2.0", "10.3.0", "10.16.1", "11.1.0")
}
PLAN, LAYERS, FILE = Path("/s/1.plan"), Path("/s/1.layers.json"), Path("/s/out.json")
INPUTS = {"x": Path("/s/timed0.bin"), "a:b": Path("/s/timed1.bin")}
LOADED = "--loadInputs=x:/s/timed0.bin,'a:b':/s/timed1.bin"
RANGE = ShapeRange((1, 3), (4, 3), (8, 3))


def usage(version: str, **options: str) -> TrtexecSettings:
    return trtexec_settings(SessionOptions(engine_options=options), VERSIONS[version])


def built(version: str, low_types: Sequence[str] = (), **options: str) -> list[str]:
    return build_arguments(usage(version, **options), low_types, {})


def timed(version: str, engine: Sequence[str] = ("--loadEngine=p",), **options: str) -> list[str]:
    ours = [*time_arguments(usage(version, **options), 12, FILE), *feed_arguments(INPUTS, {})]
    return joined(ours, engine)


class TestBuild:
    @pytest.mark.parametrize(
        ("version", "expected"),
        [
            ("8.4.3", ["--buildOnly"]),
            ("8.6.1", ["--skipInference"]),
            ("10.3.0", ["--skipInference"]),
            ("10.16.1", ["--skipInference"]),
            ("11.1.0", ["--skipInference"]),
        ],
    )
    def test_command(self, version: str, expected: list[str]) -> None:
        command = build_command(usage(version), "/m/m.onnx", PLAN, LAYERS, ["--args"])
        assert command == [
            "--onnx=/m/m.onnx",
            "--saveEngine=/s/1.plan",
            *expected,
            "--profilingVerbosity=detailed",
            "--exportLayerInfo=/s/1.layers.json",
            "--args",
        ]

    @pytest.mark.parametrize(
        ("version", "floats", "int8", "fp8"),
        [
            ("8.6.1", ["--fp16"], ["--fp16", "--int8"], ["--fp16", "--fp8"]),
            ("9.2.0", ["--fp16"], ["--fp16", "--int8"], ["--fp16", "--fp8"]),
            ("10.3.0", *[["--stronglyTyped"]] * 3),
            ("10.16.1", *[["--stronglyTyped"]] * 3),
            ("11.1.0", [], [], []),
        ],
    )
    def test_types(self, version: str, floats: list[str], int8: list[str], fp8: list[str]) -> None:
        assert built(version) == floats
        assert built(version, ["int8"]) == int8
        assert built(version, ["float8_e4m3fn"]) == fp8
        assert built(version, ["int8", "float8_e4m3fn"]) == fp8  # never both options

    @pytest.mark.parametrize(
        ("version", "options", "expected"),
        [
            ("10.16.1", {"typing": "weak"}, ["--fp16", "--int8"]),
            ("10.16.1", {"typing": "weak", "precision": "bf16"}, ["--bf16", "--int8"]),
            ("10.16.1", {"typing": "weak", "precision": "fp32"}, ["--int8"]),
            ("9.2.0", {"typing": "strong"}, ["--stronglyTyped"]),
            ("10.16.1", {"args": "--stronglyTyped"}, ["--stronglyTyped"]),
            ("10.16.1", {"args": "--fp16"}, ["--int8", "--fp16"]),
            ("10.16.1", {"args": "--bf16 --int8"}, ["--bf16", "--int8"]),
            ("10.16.1", {"args": "--best"}, ["--best"]),
            ("11.1.0", {"args": "--fp16"}, []),
            ("11.1.0", {"args": "--stronglyTyped"}, ["--stronglyTyped"]),
        ],
    )
    def test_types_that_the_user_wants(
        self, version: str, options: dict[str, str], expected: list[str]
    ) -> None:
        assert built(version, ["int8"], **options) == expected

    @pytest.mark.parametrize(
        ("version", "options", "message"),
        [
            ("8.6.1", {"typing": "strong"}, "has no --stronglyTyped"),
            ("11.1.0", {"typing": "weak"}, "has no --fp16"),
            ("8.6.1", {"precision": "bf16"}, "has no --bf16"),
            ("8.4.3", {"level": "3"}, "has no --builderOptimizationLevel"),
            ("10.3.0", {"args": "--remoteAutoTuningConfig=ssh://x"}, "came with 10.13"),
            ("10.3.0", {"args": "--stronglyTyped", "typing": "weak"}, "args ask for strong"),
            ("10.3.0", {"args": "--saveEngine=x"}, "args has --saveEngine"),
            ("10.3.0", {"args": "'"}, "args can't be read"),
            ("10.3.0", {"args": "--fp8"}, "args has --fp8, but the model needs --int8"),
            ("10.3.0", {"args": "--device=1", "device": "0"}, "args has --device=1"),
            ("10.3.0", {"warmup_ms": "-1"}, "warmup_ms is '-1'"),
            ("10.3.0", {"tactics": "all"}, "no option 'tactics'"),
        ],
    )
    def test_what_can_not_be_is_refused(
        self, version: str, options: dict[str, str], message: str
    ) -> None:
        with pytest.raises(ValueError, match=message):
            built(version, ["int8"], **options)

    @pytest.mark.parametrize(
        ("version", "expected"),
        [
            ("8.4.3", ["--plugins=a.so", "--plugins=b.so"]),
            ("11.1.0", ["--staticPlugins=a.so", "--staticPlugins=b.so"]),
        ],
    )
    def test_settings(self, version: str, expected: list[str]) -> None:
        options = {"workspace_mib": "99", "plugins": "a.so:b.so", "device": "2"}
        found = built(version, **options)[-4:]
        assert found == ["--memPoolSize=workspace:99", *expected, "--device=2"]

    @pytest.mark.parametrize(
        ("version", "args", "expected", "notes"),
        [
            ("8.6.1", "--workspace=4", ["--workspace=4"], 1),
            ("10.3.0", "--workspace=4", ["--memPoolSize=workspace:4"], 2),
            ("10.3.0", "--memPoolSize=workspace:4M", ["--memPoolSize=workspace:4M"], 1),
            ("10.3.0", "--memPoolSize=dlaSRAM:1", ["--memPoolSize=dlaSRAM:1,workspace:99"], 0),
        ],
    )
    def test_the_workspace_is_said_once(
        self, version: str, args: str, expected: list[str], notes: int
    ) -> None:
        asked = usage(version, workspace_mib="99", precision="fp32", typing="weak", args=args)
        assert build_arguments(asked, [], {}) == expected
        assert len(asked.notes) == notes

    def test_level(self) -> None:
        assert built("11.1.0", level="5") == ["--builderOptimizationLevel=5"]

    def test_shapes(self) -> None:
        assert build_arguments(usage("11.1.0"), [], {"x": RANGE, "a:b": RANGE}) == [
            "--minShapes=x:1x3,'a:b':1x3",
            "--optShapes=x:4x3,'a:b':4x3",
            "--maxShapes=x:8x3,'a:b':8x3",
        ]

    def test_shapes_among_the_users_arguments_are_requests(self) -> None:
        asked = usage("11.1.0", args="--optShapes=x:4x3 --maxShapes=x:8x3", opt_shapes="y:2")
        assert asked.given == ()
        assert asked.settings.shapes.usual == {"x": (4, 3), "y": (2,)}
        assert asked.settings.shapes.most == {"x": (8, 3)}
        run = usage("11.1.0", args="--shapes=x:8x3 --optShapes=x:4x3")
        assert run.settings.shapes.usual == {"x": (4, 3)}

    def test_remote_autotuning_is_safe_and_tells_no_layers(self) -> None:
        asked = usage("10.16.1", args="--remoteAutoTuningConfig=ssh://host")
        given = ["--remoteAutoTuningConfig=ssh://host", "--safe"]
        command = build_command(asked, "m", PLAN, LAYERS, build_arguments(asked, [], {}))
        assert command == [
            "--onnx=m",
            "--saveEngine=/s/1.plan",
            "--skipInference",
            "--stronglyTyped",
            *given,
        ]
        assert load_arguments(asked, PLAN) == ["--loadEngine=/s/1.plan", "--safe"]


class TestRuns:
    @pytest.mark.parametrize(
        ("version", "expected"),
        [
            ("8.4.3", ["--noDataTransfers", "--useSpinWait"]),
            ("8.6.1", ["--noDataTransfers", "--useSpinWait"]),
            ("10.16.1", ["--noDataTransfers", "--useSpinWait"]),
            ("11.1.0", []),
        ],
    )
    def test_timed(self, version: str, expected: list[str]) -> None:
        assert timed(version) == [
            "--iterations=12",
            "--duration=0",
            "--warmUp=200",
            "--avgRuns=12",
            *expected,
            "--exportTimes=/s/out.json",
            LOADED,
            "--loadEngine=p",
        ]

    @pytest.mark.parametrize(
        ("version", "requested", "expected"),
        [
            ("10.16.1", "1", {"--useCudaGraph"}),
            ("10.16.1", "0", set()),
            ("11.1.0", "1", set()),
            ("11.1.0", "0", {"--noCudaGraph"}),
        ],
    )
    def test_cuda_graph(self, version: str, requested: str, expected: set[str]) -> None:
        command = timed(version, cuda_graph=requested)
        assert {argument for argument in command if "CudaGraph" in argument} == expected

    @pytest.mark.parametrize(
        ("version", "requested", "args", "expected"),
        [
            ("10.16.1", "1", "--noCudaGraph", []),
            ("10.16.1", "0", "--useCudaGraph", ["--useCudaGraph"]),
            ("11.1.0", "0", "--useCudaGraph", []),
            ("11.1.0", "1", "--noCudaGraph", ["--noCudaGraph"]),
        ],
    )
    def test_arguments_say_how_runs_are_launched(
        self, version: str, requested: str, args: str, expected: list[str]
    ) -> None:
        asked = usage(version, cuda_graph=requested, args=args)
        command = joined(time_arguments(asked, 12, FILE), load_arguments(asked, PLAN))
        assert [argument for argument in command if "CudaGraph" in argument] == expected

    def test_the_user_has_the_last_word(self) -> None:
        command = timed("10.3.0", ["--loadEngine=p", "--iterations=99", "--useSpinWait"])
        assert command.count("--useSpinWait") == 1
        assert [each for each in command if "iterations" in each] == ["--iterations=99"]

    @pytest.mark.parametrize(("version", "times"), [("8.6.1", 1), ("10.3.0", 1), ("11.1.0", 0)])
    def test_a_profile_that_the_user_wants_leaves_the_summary(
        self, version: str, times: int
    ) -> None:
        assert timed(version, args="--dumpProfile").count("--separateProfileRun") == times

    @pytest.mark.parametrize(
        ("version", "expected"),
        [
            ("8.6.1", ["--separateProfileRun"]),
            ("10.16.1", ["--separateProfileRun"]),
            ("11.1.0", []),
        ],
    )
    def test_profiled(self, version: str, expected: list[str]) -> None:
        asked = usage(version, warmup_ms="50")
        assert profile_arguments(asked, 5, FILE, LAYERS) == [
            "--iterations=5",
            "--duration=0",
            "--warmUp=50",
            "--avgRuns=5",
            "--exportProfile=/s/out.json",
            "--profilingVerbosity=detailed",
            "--exportLayerInfo=/s/1.layers.json",
            *expected,
        ]

    def test_outputs(self) -> None:
        ours = [*output_arguments(FILE), *feed_arguments(INPUTS, {"x": (4, 3)})]
        assert joined(ours, ["--loadEngine=p"]) == [
            "--iterations=1",
            "--duration=0",
            "--warmUp=0",
            "--avgRuns=1",
            "--exportOutput=/s/out.json",
            "--shapes=x:4x3",
            LOADED,
            "--loadEngine=p",
        ]

    def test_engines(self) -> None:
        asked = usage("11.1.0", plugins="a.so", args="--verbose")
        assert load_arguments(asked, PLAN) == [
            "--loadEngine=/s/1.plan",
            "--staticPlugins=a.so",
            "--verbose",
        ]
        anew = rebuild_arguments(asked, "m.onnx", build_arguments(asked, [], {}))
        assert anew == ["--onnx=m.onnx", "--staticPlugins=a.so", "--verbose"]


class TestTyping:
    @pytest.mark.parametrize(
        ("version", "options", "expected"),
        [
            ("8.6.1", {}, "weak"),
            ("9.2.0", {}, "weak"),
            ("10.3.0", {}, "strong"),
            ("11.1.0", {}, "strong"),
            ("10.3.0", {"typing": "weak"}, "weak"),
            ("10.3.0", {"args": "--fp16"}, "weak"),
            ("10.3.0", {"args": "--fp16 --stronglyTyped"}, "strong"),
            ("11.1.0", {"args": "--fp16"}, "strong"),
        ],
    )
    def test_is_recorded(self, version: str, options: dict[str, str], expected: str) -> None:
        assert usage(version, **options).info_options == {**options, "typing": expected}
