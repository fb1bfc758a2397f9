"""What a user says to trtexec, in versions that take it, take something else, or don't."""

from __future__ import annotations

import pytest

from qdqtune.engines._interface import SessionOptions
from qdqtune.engines.tensorrt._trtexec_arguments import TrtexecSettings, trtexec_settings
from qdqtune.engines.tensorrt._trtexec_program import DISPENSABLE, NOT_WHEN_SAFE, Version

V8_4, V8_6, V9_2 = Version(8, 4, 3), Version(8, 6, 1), Version(9, 2)
V10_3, V10_16, V11_1 = Version(10, 3), Version(10, 16, 1), Version(11, 1)
GUIDES = "--fp16 --workspace=4096 --verbose"


def usage(words: str, version: Version) -> TrtexecSettings:
    return trtexec_settings(SessionOptions(engine_options={"args": words}), version)


@pytest.mark.parametrize(
    ("version", "words", "expected", "noted"),
    [
        (V8_6, GUIDES, GUIDES, []),
        (V9_2, GUIDES, GUIDES, []),
        (V10_16, GUIDES, "--fp16 --verbose --memPoolSize=workspace:4096", ["--workspace"]),
        (V11_1, GUIDES, "--verbose --memPoolSize=workspace:4096", ["--fp16", "--workspace"]),
        (V11_1, "--int8 --fp8", "", ["--int8", "--fp8"]),
        (V11_1, "--best --bf16 --int4", "", ["--best", "--bf16", "--int4"]),
        (V10_3, "--explicitBatch --noTF32", "--noTF32", ["--explicitBatch"]),
        (V8_6, "--explicitBatch --plugins=a.so", "--explicitBatch --plugins=a.so", []),
        (V11_1, "--stronglyTyped --useSpinWait", "--stronglyTyped --useSpinWait", []),
        (V11_1, "--plugins=a.so --plugins=b.so", "--plugins=a.so --plugins=b.so", []),
        (V10_3, "--memPoolSize=dlaSRAM:1 --workspace=2", "--memPoolSize=dlaSRAM:1,workspace:2",
         ["--workspace"]),
        (V10_3, "--device=2 --useCudaGraph --new=1", "--new=1", []),
    ],
)  # fmt: skip
def test_what_is_said(version: Version, words: str, expected: str, noted: list[str]) -> None:
    asked = usage(words, version)
    assert list(asked.given) == expected.split()
    assert len(asked.notes) == len(noted)
    for note, name in zip(asked.notes, noted, strict=True):
        assert f"trtexec {version} has no {name}" in note


@pytest.mark.parametrize(
    ("version", "words", "message"),
    [
        (V8_6, "--stronglyTyped", r"--stronglyTyped, which trtexec 8\.6\.1 doesn't know.* 9\.0"),
        (V8_6, "--bf16", r"it came with 9\.0; leave it out"),
        (V8_4, "--fp8", r"it came with 8\.6"),
        (V8_4, "--staticPlugins=a.so", "say --plugins"),
        (V10_3, "--heuristic", r"10\.0 removed it; say --builderOptimizationLevel=2"),
        (V10_3, "--batch=4", "say --shapes"),
        (V10_3, "--noSpinWait", r"it came with 11\.0"),
        (V10_3, "--buildOnly", "qdqtune says to trtexec itself"),
        (V10_3, "--int8 --fp8", "only one of them"),
        (V10_3, "--workspace=1 --memPoolSize=dlaSRAM:1,workspace:2", "leave one out"),
        (V11_1, "--useCudaGraph --noCudaGraph", "leave one out"),
        (V11_1, "--device=cuda:1", "number of a GPU"),
    ],
)
def test_what_would_lose_its_meaning_is_refused(version: Version, words: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        usage(words, version)


@pytest.mark.parametrize("version", [V8_6, V10_16, V11_1])
def test_settings_among_arguments(version: Version) -> None:
    asked = usage("--device=2 --noCudaGraph", version)
    assert (asked.given, asked.settings.device, asked.settings.cuda_graph) == ((), 2, False)
    assert usage("--useCudaGraph", version).settings.cuda_graph is True
    nothing = usage("", version).settings
    assert (nothing.device, nothing.cuda_graph) == (0, None)


def test_what_safe_forbids_can_be_done_without() -> None:
    assert NOT_WHEN_SAFE < DISPENSABLE


@pytest.mark.parametrize(
    ("version", "words", "told"),
    [
        (V8_6, "", "float16"),
        (V9_2, "--bf16", "bfloat16"),
        (V8_6, "--best", "float16"),
        (V8_6, "--int8", "tf32"),
        (V8_6, "--int8 --noTF32", "float32"),
        (V10_16, "", "tf32"),
        (V10_16, "--noTF32", "float32"),
    ],
)
def test_what_float32_is_computed_in(version: Version, words: str, told: str) -> None:
    assert usage(words, version).float_type("sm90") == told
