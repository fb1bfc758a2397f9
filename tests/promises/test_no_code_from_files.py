"""Nothing that qdqtune reads is ever run: neither by our source nor from where the user stands."""

from __future__ import annotations

import ast
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest

from qdqtune.cli.main import main
from tests.promises.conftest import ROOT
from tests.promises.models import one_matmul, tree

BANNED_MODULES = frozenset(
    {"pickle", "_pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "code"}
)
BANNED_NAMES = frozenset({"eval", "exec", "__import__"})
BANNED_ATTRIBUTES = {
    "os": frozenset({"system", "popen", "startfile"}),
    "subprocess": frozenset({"getoutput", "getstatusoutput"}),
    "builtins": BANNED_NAMES,
    "yaml": frozenset(
        {"unsafe_load", "unsafe_load_all", "full_load", "full_load_all", "Loader", "UnsafeLoader",
         "FullLoader", "CLoader", "CFullLoader", "CUnsafeLoader"}
    ),
}  # fmt: skip
SAFE_LOADERS = frozenset({"SafeLoader", "CSafeLoader", "BaseLoader", "CBaseLoader"})
BANNED_FLAGS = frozenset({"shell", "allow_pickle"})


def banned(text: str) -> list[str]:
    """What a module does that could run what it reads, as ``line: what``."""
    module = ast.parse(text)
    safe = _safe_loaders(module)
    found = [(node.lineno, what) for node in ast.walk(module) for what in _faults(node, safe)]
    return [f"{line}: {what}" for line, what in sorted(found)]


def _faults(node: ast.AST, safe: frozenset[str]) -> Iterator[str]:
    match node:
        case ast.Import(names=names):
            yield from (a.name for a in names if a.name.partition(".")[0] in BANNED_MODULES)
        case ast.ImportFrom(module=str(source), names=names):
            if source.partition(".")[0] in BANNED_MODULES:
                yield source
            banned_here = BANNED_ATTRIBUTES.get(source, frozenset()) | (
                {"load", "load_all"} if source == "yaml" else frozenset()
            )
            yield from (f"{source}.{a.name}" for a in names if a.name in banned_here)
        case ast.Name(id=name, ctx=ast.Load()) if name in BANNED_NAMES:
            yield name
        case ast.Attribute(value=ast.Name(id=owner), attr=name) if name in BANNED_ATTRIBUTES.get(
            owner, frozenset()
        ):
            yield f"{owner}.{name}"
        case ast.Call(func=ast.Attribute(value=ast.Name(id="yaml"), attr="load" | "load_all")):
            loaders = [k.value for k in node.keywords if k.arg == "Loader"] + node.args[1:2]
            names = [getattr(each, "attr", getattr(each, "id", "")) for each in loaders]
            if len(names) != 1 or names[0] not in safe:
                yield "yaml.load"
    if isinstance(node, ast.Call):
        for keyword in node.keywords:
            off = isinstance(keyword.value, ast.Constant) and keyword.value.value is False
            if keyword.arg in BANNED_FLAGS and not off:
                yield f"{keyword.arg}={ast.unparse(keyword.value)}"


def _safe_loaders(module: ast.Module) -> frozenset[str]:
    """The safe ones, and names in the module that stand for nothing but them."""
    named = set(SAFE_LOADERS)
    for node in ast.walk(module):
        bases: list[ast.expr] = []
        name = ""
        match node:
            case ast.ClassDef(name=name, bases=bases):
                pass
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                bases = [value]
        words = {
            getattr(each, "attr", getattr(each, "value", "")) for base in bases
            for each in ast.walk(base) if isinstance(each, (ast.Attribute, ast.Constant))
        }  # fmt: skip
        if words and words <= named:
            named.add(name)
    return frozenset(named)


@pytest.mark.parametrize(
    "text",
    [
        "import pickle",
        "import marshal as m",
        "from shelve import open",
        "from os import system",
        "os.system('x')",
        "os.popen('x')",
        "eval('1')",
        "run = exec",
        "__import__('x')",
        "subprocess.run('x', shell=True)",
        "subprocess.Popen('x', shell=flag)",
        "np.load(p, allow_pickle=True)",
        "yaml.load(t)",
        "yaml.load(t, Loader=yaml.Loader)",
        "yaml.load(t, yaml.FullLoader)",
        "yaml.unsafe_load(t)",
        "from yaml import load",
        "class L(yaml.Loader): pass\nyaml.load(t, Loader=L)",
    ],
)
def test_the_check_finds_it(text: str) -> None:
    assert banned(text)


@pytest.mark.parametrize(
    "text",
    [
        "# eval and pickle in a comment",
        "'eval(1)'",
        "model.eval()",
        "ast.literal_eval('1')",
        "subprocess.run(['x'], shell=False)",
        "np.load(p, allow_pickle=False)",
        "yaml.safe_load(t)",
        "yaml.load(t, Loader=yaml.CSafeLoader)",
        "class L(yaml.SafeLoader): pass\nyaml.load(t, Loader=L)",
        "L = getattr(yaml, 'CSafeLoader', yaml.SafeLoader)\nyaml.load(t, L)",
    ],
)
def test_the_check_lets_it_pass(text: str) -> None:
    assert banned(text) == []


def test_our_source_runs_nothing_that_it_reads() -> None:
    files = sorted((ROOT / "src").rglob("*.py"))
    assert len(files) > 100
    found = {str(file.relative_to(ROOT)): banned(file.read_text("utf-8")) for file in files}
    assert {file: faults for file, faults in found.items() if faults} == {}


class Bomb:
    """Unpickled, it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("suffix", ["npy", "npz"])
def test_pickles_in_calibration_data_are_refused_and_not_run(
    suffix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mark = tmp_path / "exploded"
    onnx.save(one_matmul(), tmp_path / "m.onnx")
    bomb = np.array([Bomb(mark)], dtype=object)
    data = tmp_path / f"data.{suffix}"
    np.save(data, bomb) if suffix == "npy" else np.savez(data, x=bomb)
    line = ["insert", str(tmp_path / "m.onnx"), "--ops", "MatMul", "-o", str(tmp_path / "q.onnx")]
    assert main([*line, "--calibration_data", str(data)]) == 2
    assert "pickled Python objects, which are never loaded" in capsys.readouterr().err
    assert not mark.exists()
    pickle.loads(pickle.dumps(Bomb(mark)))  # it would have
    assert mark.exists()


def test_modules_where_the_user_stands_are_not_imported(tmp_path: Path) -> None:
    onnx.save(one_matmul(), tmp_path / "m.onnx")
    for name in ("json", "numpy", "onnx", "onnxruntime", "yaml", "qdqtune", "sitecustomize"):
        (tmp_path / f"{name}.py").write_text("open('imported', 'a').write(__name__)\n")
    before = tree(tmp_path)
    program = [str(Path(sys.executable).with_name("qdqtune")), "bench", "m.onnx", "--runs", "2"]
    done = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert tree(tmp_path) == before
