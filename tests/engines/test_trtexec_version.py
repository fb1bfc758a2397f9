from __future__ import annotations

import os
from pathlib import Path

import pytest

from qdqtune.engines.tensorrt._trtexec_arguments import joined, require, takes
from qdqtune.engines.tensorrt._trtexec_program import (
    Version,
    find_program,
    parse_version,
    version_of,
)

LOG = Path(__file__).parents[1] / "data" / "tensorrt" / "trt1016" / "result-04.log"


def program(path: Path, prints: str, code: int = 0) -> str:
    path.write_text(f"#!/bin/sh\ncat <<'END'\n{prints}\nEND\nexit {code}\n")
    path.chmod(0o755)
    return str(path)


def banner(number: str, build: str = "") -> str:
    return f"&&&& RUNNING TensorRT.trtexec [TensorRT v{number}]{build} # trtexec --help"


class TestVersion:
    @pytest.mark.parametrize(
        ("number", "expected"),
        [
            ("8403", "8.4.3"),
            ("8503", "8.5.3"),
            ("8601", "8.6.1"),
            ("9200", "9.2.0"),
            ("100300", "10.3.0"),
            ("101601", "10.16.1"),
            ("110100", "11.1.0"),
        ],
    )
    @pytest.mark.parametrize("build", ["", " [b11]"])
    def test_of_a_banner(self, number: str, build: str, expected: str) -> None:
        assert str(parse_version(banner(number, build))) == expected

    def test_of_a_real_log(self) -> None:
        assert parse_version(LOG.read_text()) == Version(10, 16, 1)

    @pytest.mark.parametrize("text", ["", "trtexec 10.3", "&&&& RUNNING other [v1]"])
    def test_of_something_else_is_none(self, text: str) -> None:
        assert parse_version(text) is None

    def test_versions_are_no_texts(self) -> None:
        assert Version(9, 3) < Version(10, 0) < Version(10, 16, 1) < Version(11)


class TestProgram:
    def test_is_asked_by_its_help(self, tmp_path: Path) -> None:
        path = program(tmp_path / "trtexec", banner("8601"), code=1)
        assert version_of(path) == Version(8, 6, 1)

    def test_another_at_the_same_place_is_asked_again(self, tmp_path: Path) -> None:
        path = program(tmp_path / "trtexec", banner("8601"))
        assert version_of(path) == Version(8, 6, 1)
        program(tmp_path / "trtexec", banner("110100"))
        assert version_of(path) == Version(11, 1, 0)

    def test_without_its_libraries_says_what_is_missing(self, tmp_path: Path) -> None:
        missing = "error while loading shared libraries: libnvinfer.so.10: cannot open"
        path = program(tmp_path / "trtexec", missing, code=127)
        with pytest.raises(ValueError, match=r"libnvinfer\.so\.10"):
            version_of(path)

    def test_that_prints_without_end_is_read_up_to_a_limit(self, tmp_path: Path) -> None:
        path = tmp_path / "trtexec"
        path.write_text(f"#!/bin/sh\necho '{banner('8601')}'\nexec yes\n")
        path.chmod(0o755)
        assert version_of(str(path)) == Version(8, 6, 1)

    def test_that_is_no_program(self, tmp_path: Path) -> None:
        path = tmp_path / "trtexec"
        path.write_bytes(b"\x7fELF but not really")
        path.chmod(0o755)
        with pytest.raises(ValueError, match="can't be asked for its version"):
            version_of(str(path))

    def test_is_found_on_path(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PATH", str(tmp_path))
        with pytest.raises(ValueError, match="not on PATH"):
            find_program("")
        path = program(tmp_path / "trtexec", banner("8601"))
        assert find_program("") == path
        assert find_program(path) == path

    def test_that_the_user_names_is_named_if_missing(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="elsewhere"):
            find_program(os.fspath(tmp_path / "elsewhere"))


V8_4, V8_6, V10_3, V10_16, V11 = (
    Version(*numbers) for numbers in ((8, 4, 3), (8, 6, 1), (10, 3, 0), (10, 16, 1), (11, 1, 0))
)


class TestFlags:
    @pytest.mark.parametrize(
        ("flag", "versions"),
        [
            ("--stronglyTyped", {V10_3, V10_16}),
            ("--fp16", {V8_4, V8_6, V10_3, V10_16}),
            ("--int8", {V8_4, V8_6, V10_3, V10_16}),
            ("--bf16", {V10_3, V10_16}),
            ("--fp8", {V8_6, V10_3, V10_16}),
            ("--skipInference", {V8_6, V10_3, V10_16, V11}),
            ("--buildOnly", {V8_4}),
            ("--useCudaGraph", {V8_4, V8_6, V10_3, V10_16}),
            ("--noCudaGraph", {V11}),
            ("--separateProfileRun", {V8_4, V8_6, V10_3, V10_16}),
            ("--staticPlugins", {V8_6, V10_3, V10_16, V11}),
            ("--plugins", {V8_4}),
            ("--builderOptimizationLevel", {V8_6, V10_3, V10_16, V11}),
            ("--remoteAutoTuningConfig", {V10_16, V11}),
            ("--onnx", {V8_4, V8_6, V10_3, V10_16, V11}),
        ],
    )
    def test_by_version(self, flag: str, versions: set[Version]) -> None:
        known = (V8_4, V8_6, V10_3, V10_16, V11)
        assert {version for version in known if takes(version, flag)} == versions

    def test_that_are_missing_say_since_or_until_when(self) -> None:
        with pytest.raises(ValueError, match=r"8\.6\.1 has no --bf16.*came with 9\.0"):
            require(V8_6, "--bf16", "the precision")
        with pytest.raises(ValueError, match=r"11\.1\.0 has no --int8.*11\.0 removed it"):
            require(V11, "--int8", "Q/DQ")
        require(V10_3, "--int8", "Q/DQ")

    def test_of_the_user_are_not_said_twice(self) -> None:
        ours = ["--fp16", "--iterations=5", "--staticPlugins=a.so"]
        given = ["--iterations=7", "--staticPlugins=b.so"]
        assert joined(ours, given) == ["--fp16", "--staticPlugins=a.so", *given]
