"""The front of a run: models of which none is both faster and more accurate than another."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import ClassVar, TypeVar

from qdqtune.records._json_form import UNBOUNDED, Record
from qdqtune.records._untrusted_files import SCHEMAS, versioned

T = TypeVar("T")


@dataclass(frozen=True)
class FrontPoint(Record):
    """A model that was timed in the final comparison, and that no other of them beats in both.

    Attributes:
        name: Its name.
        file: Its file within the run's folder.
        digest: Digest of that file and its weights.
        latency_ms: Its latency.
        speedup: Over the baseline.
        speedup_interval: Its interval.
        sqnr_db: SQNR of its worst output against the float model, in dB; None if unknown.
        metric: The user's metric; None if not requested, or if it would have taken too long.
        qdq_pairs: Number of tensors quantized in it.
        candidate: Its id in the search.
        chosen: Whether it is the written model.
    """

    name: str
    file: str
    digest: str
    latency_ms: float
    speedup: float
    speedup_interval: tuple[float, float] = field(metadata=UNBOUNDED)
    sqnr_db: float | None = None
    metric: float | None = None
    qdq_pairs: int = 0
    candidate: str = ""
    chosen: bool = False


@dataclass(frozen=True)
class Front(Record):
    """The front of a run: `pareto.json`.

    Attributes:
        points: The points, fastest first.
    """

    KIND: ClassVar[str] = "pareto"
    SCHEMA: ClassVar[int] = SCHEMAS["pareto"]

    points: tuple[FrontPoint, ...] = ()

    @classmethod
    def from_dict(cls, value: object, name: str = "The front") -> Front:
        """Read the JSON form; see `Record.from_dict`.

        Raises:
            NewerSchemaError: If a newer version wrote it.
            KeyError: If a field is missing.
            TypeError: If there is an unknown field.
            ValueError: If a field has an invalid value.
        """
        return super().from_dict(versioned(value, cls.KIND, name))


def not_beaten(
    models: Iterable[T], speed: Callable[[T], float], accuracy: Callable[[T], float]
) -> list[T]:
    """Return the models of which none is both faster and more accurate than another.

    Args:
        models: The models.
        speed: The speed of a model.
        accuracy: Its accuracy; higher is better.

    Returns:
        They, fastest first; of equal ones the first.
    """
    found: list[T] = []
    for model in sorted(models, key=lambda each: (-speed(each), -accuracy(each))):
        if not found or accuracy(model) > accuracy(found[-1]):
            found.append(model)
    return found
