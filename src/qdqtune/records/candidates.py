"""What a search tried, one by one."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Candidate:
    """A placement that was tried in a run.

    Attributes:
        id: What it is called in `measurements.jsonl`, and the name of its file.
        tensors: How many tensors are quantized in it; None if its file is not there.
        latency_ms: As it was measured last; None if it never was.
        speedup: Over the float model, as the search estimated it: through what it was compared
            with, if that was not the float model itself. None if it was never measured.
        failure: Why the engine refused it; None if it didn't.
    """

    id: str
    tensors: int | None
    latency_ms: float | None
    speedup: float | None
    failure: str | None

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return asdict(self)
