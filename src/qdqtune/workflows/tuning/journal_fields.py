"""What the fields of a journal's line can be: a line that says anything else is damaged.

A checksum shows that a line is what somebody wrote, not that it makes sense: the journal may come
from a stranger.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from qdqtune.records.measurement import LEAST_MS, MOST_MS
from qdqtune.records.type_checks import LARGEST

_Check = Callable[[Any], bool]

# No candidate is ten thousand times as fast as what it is compared with, or as slow.
_LARGEST_LOG_RATIO = math.log(1e4)
_LONGEST_S = 1e12
_LARGEST_COUNT = 2**53
_INFINITE = ("inf", "-inf")
_CANDIDATE_ID = re.compile(r"c[0-9]{4,12}")


def makes_sense(body: Mapping[str, Any]) -> bool:
    """Whether a line has what its kind must have, and all of it can be; unknown kinds can.

    Args:
        body: What the line says, with its kind.
    """
    wanted = _FIELDS.get(body["kind"], {})
    if not all(name in body and check(body[name]) for name, check in wanted.items()):
        return False
    if not all(check(body[name]) for name, check in _OPTIONAL.items() if name in body):
        return False
    whole = _WHOLE.get(body["kind"])
    return whole is None or whole(body)


def header_digest(header: Mapping[str, Any]) -> str:
    """What the lines of a run are known by.

    Args:
        header: What its measurements depend on.
    """
    text = json.dumps(header, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def is_candidate_id(value: object) -> bool:
    """Whether it is what candidates are called, and their files."""
    return isinstance(value, str) and _CANDIDATE_ID.fullmatch(value) is not None


def _is_number_between(low: float, high: float) -> _Check:
    def is_between(value: Any) -> bool:
        # NaN is not; integers of any size can be compared.
        return (
            isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high
        )

    return is_between


def _is_count_from(low: int) -> _Check:
    def is_count(value: Any) -> bool:
        is_integer = isinstance(value, int) and not isinstance(value, bool)
        return is_integer and low <= value <= _LARGEST_COUNT

    return is_count


def _or_none(check: _Check) -> _Check:
    return lambda value: value is None or check(value)


def _list_of(check: _Check) -> _Check:
    return lambda value: isinstance(value, list) and all(map(check, value))


def _dict_of(check: _Check) -> _Check:
    return lambda value: isinstance(value, dict) and all(map(check, value.values()))


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


_is_count = _is_count_from(0)
_is_latency = _is_number_between(LEAST_MS, MOST_MS)
_is_log_ratio = _is_number_between(-_LARGEST_LOG_RATIO, _LARGEST_LOG_RATIO)
_is_error = _is_number_between(0, _LARGEST_LOG_RATIO)
_is_seconds = _is_number_between(0, _LONGEST_S)
_is_number = _is_number_between(-LARGEST, LARGEST)


def _is_accuracy(value: Any) -> bool:
    return value is None or _is_number(value) or value in _INFINITE


def _is_header(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and isinstance(value.get("engine", {}), dict)
        and _dict_of(_list_of(_or_none(_is_count)))(value.get("shapes", {}))
    )


def _is_of_its_header(body: Mapping[str, Any]) -> bool:
    return "run" not in body or body["run"] == header_digest(body["header"])


def _is_a_round(body: Mapping[str, Any]) -> bool:
    count = len(body["candidates"])
    return len(body["latencies_ms"]) == len(body["log_ratios"]) == count


def _has_an_outcome(body: Mapping[str, Any]) -> bool:
    return body["failure"] is not None or body["gain"] is not None


# What every line may have.
_OPTIONAL: dict[str, _Check] = {
    "run": _is_text,
    "session": _is_count,
    "at_s": _is_seconds,
    "id": lambda value: value == "" or is_candidate_id(value),
    "sha256": _is_text,
}
# What a line of each kind must have; kinds that are not here are left alone.
_FIELDS: dict[str, dict[str, _Check]] = {
    "run": {"header": _is_header},
    "session": {"number": _is_count},
    "end": {"session": _is_count, "seconds": _is_seconds},
    "shares": {"shares": _dict_of(_is_number_between(0, LARGEST))},
    "calibration": {"samples": _is_count_from(1)},
    "accuracy": {
        "measure": _is_text,
        "placement": _is_text,
        "conditions": _is_text,
        "value": _is_accuracy,
    },
    "adopted": {"seconds": _is_seconds},
    "candidate": {"id": is_candidate_id, "key": _is_text},
    "file": {"id": is_candidate_id, "key": _is_text, "digest": _is_text},
    "round": {
        "reference": _is_text,
        "effort": _is_text,
        "candidates": _list_of(is_candidate_id),
        "baseline_ms": _is_latency,
        "latencies_ms": _list_of(_is_latency),
        "log_ratios": _list_of(_is_log_ratio),
    },
    "measurement": {
        "reference": _is_text,
        "candidate": _is_text,
        "effort": _is_text,
        "gain": _or_none(_is_log_ratio),
        "error": _is_error,
        "failure": _or_none(_is_text),
        "latency_ms": _or_none(_is_latency),
        "reference_ms": _or_none(_is_latency),
    },
}
# What the fields of a line must be together.
_WHOLE: dict[str, Callable[[Mapping[str, Any]], bool]] = {
    "run": _is_of_its_header,
    "round": _is_a_round,
    "measurement": _has_an_outcome,
}
