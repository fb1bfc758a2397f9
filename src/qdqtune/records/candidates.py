"""The candidates that a search tried."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from qdqtune.records.result import Result


@dataclass(frozen=True, repr=False)
class Candidate(Result):
    """A placement that was tried in a run.

    Attributes:
        id: Its identifier in `measurements.jsonl`, and the name of its file.
        tensors: Number of tensors quantized in it; None if its file is missing.
        latency_ms: The latest measured latency; None if it was never measured.
        speedup: Over the float model, as the search estimated it. If it was compared with another
            candidate, the estimate goes through that one. None if it was never measured.
        failure: Why the engine refused it; None if it didn't.
    """

    id: str
    tensors: int | None
    latency_ms: float | None
    speedup: float | None
    failure: str | None

    @property
    def headline(self) -> str:
        """The essentials, in one line."""
        if self.failure is not None:
            return f"{self.id} failed: {self.failure}"
        tensors = f", {self.tensors} tensors" if self.tensors is not None else ""
        speedup = f", {self.speedup:.3f}x" if self.speedup is not None else ""
        return f"{self.id}{tensors}{speedup}"

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return asdict(self)


@dataclass(frozen=True, repr=False)
class ExportReport(Result):
    """A candidate that was exported as a model file.

    Attributes:
        output: The file written.
        candidate: Which one it is.
    """

    output: Path
    candidate: Candidate

    @property
    def headline(self) -> str:
        """The essentials, in one line."""
        return f"candidate {self.candidate.headline}, output {self.output}"

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {"kind": "export", "output": str(self.output), **self.candidate.to_dict()}
