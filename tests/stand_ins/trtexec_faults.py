"""What can go wrong in the stand-in trtexec, by the names that STAND_IN_TRT_FAULT takes."""

from __future__ import annotations

WHEN_BUILDING = (
    "build_fails", "streamed_build_fails", "out_of_memory", "segfault", "hang", "empty_engine",
    "exits_zero_but_failed",
)  # fmt: skip
WHEN_RUNNING = (
    "no_summary", "nan_latency", "inference_fails", "segfault_in_run", "hang_in_run",
    "out_of_memory_in_run",
)  # fmt: skip
OF_LAYERS = ("truncated_profile", "truncated_layers", "no_profile")
HARMLESS = ("interleaved", "huge_log")
NO_GPU = "no_gpu"
NAMED = "named"
"""Instead of a fault: the fault after which the model file is called."""


class Faults:
    """The faults of one run.

    Args:
        text: A fault, or a fault, `@` and part of the name of the model that it strikes, or
            `named`.

    Attributes:
        model: The name of the model file, once it is known.

    Raises:
        ValueError: If there is no such fault.
    """

    def __init__(self, text: str) -> None:
        self._name, _, self._only = text.partition("@")
        known = (*WHEN_BUILDING, *WHEN_RUNNING, *OF_LAYERS, *HARMLESS, NO_GPU, NAMED, "")
        if self._name not in known:
            raise ValueError(f"the stand-in has no fault {self._name!r}; it has {known}")
        self.model = ""

    @property
    def no_gpu(self) -> bool:
        """Whether there is no GPU."""
        return self._name == NO_GPU

    def strikes(self, fault: str) -> bool:
        """Whether this goes wrong with the model."""
        if self._name == NAMED:
            return self.model == f"{fault}.onnx"
        return self._name == fault and self._only in self.model
