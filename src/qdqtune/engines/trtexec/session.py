"""A model that trtexec runs: every request is a process of its own."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from qdqtune.engines.interface import InputSpec
from qdqtune.engines.tensorrt.layer_info import LayerInfo, parse_layer_info
from qdqtune.engines.tensorrt.layer_times import layer_times_of
from qdqtune.engines.tensorrt.profile import parse_profile
from qdqtune.engines.tensorrt.shapes import Shapes, widened
from qdqtune.engines.trtexec.command import (
    load_arguments,
    output_command,
    profile_command,
    rebuild_arguments,
    time_command,
)
from qdqtune.engines.trtexec.input_files import write_feeds
from qdqtune.engines.trtexec.output import gpu_median_ms
from qdqtune.engines.trtexec.plans import ModelFile, Plan, PlanBuilder
from qdqtune.engines.trtexec.program import TrtexecError
from qdqtune.engines.trtexec.results import last_times_ms, parse_outputs
from qdqtune.graph.disk_errors import writing
from qdqtune.records.measurement import LayerTime
from qdqtune.records.untrusted_files import TEXT_BYTES, read_bytes

if TYPE_CHECKING:
    from qdqtune.engines.interface import Feeds, Outputs

# Six digits take about ten characters: 100 million values.
_OUTPUTS_BYTES = 1 << 30


class TrtexecSession:
    """A model open in trtexec. It is built when the shapes of its inputs are known.

    Args:
        model: The model.
        builder: What builds it.
        layers_path: Where to write what is known of its layers; None for nowhere.
    """

    def __init__(self, model: ModelFile, builder: PlanBuilder, layers_path: str | None) -> None:
        self._model = model
        self._signature = model.signature
        self._usage = model.usage
        self._program = model.program
        self._builder = builder
        self._layers_path = layers_path
        self._timed: Plan | None = None
        self._ran: Plan | None = None
        self._fed: Mapping[str, Path] | None = None
        self._shapes: Shapes = {}
        requested = self._usage.settings.shapes
        requested.check_names(self._signature.dims)
        if all(name in requested.usual for name in self._signature.open_inputs):
            usual = {name: requested.usual[name] for name in self._signature.open_inputs}
            self._timed = self._plan_for(usual, None)

    @property
    def inputs(self) -> tuple[InputSpec, ...]:
        """What the model wants."""
        return self._signature.inputs

    def set_feeds(self, feeds: Feeds) -> None:
        """Writes the inputs of timed runs; builds if there is no engine for their shapes."""
        self._signature.check_feeds(feeds)
        self._shapes = self._open_shapes(feeds)
        self._timed = self._plan_for(self._shapes, self._timed)
        self._fed = write_feeds(feeds, self._model.folder, "timed", self._usage.version)

    def run(self, feeds: Feeds) -> Outputs:
        """Runs once and returns the outputs, in the six digits that trtexec writes."""
        self._signature.check_feeds(feeds)
        shapes = self._open_shapes(feeds)
        plan = self._timed
        if plan is None or not plan.takes(shapes):
            plan = self._ran = self._plan_for(shapes, self._ran)
        inputs = write_feeds(feeds, self._model.folder, "run", self._usage.version)
        file = self._fresh("outputs.json")
        self._call("run", plan, lambda engine: output_command(engine, file, inputs, shapes))
        refused = self._program.refused & {"--exportOutput", *(["--loadInputs"] if inputs else [])}
        if refused or not file.exists():
            why = f"it doesn't know {min(refused)}" if refused else "it wrote no file"
            raise TrtexecError(f"this trtexec can't tell the outputs of a model: {why}")
        return parse_outputs(_read(file, _OUTPUTS_BYTES), self._signature.outputs)

    def time_runs(self, runs: int) -> list[float]:
        """Times runs on the kept feeds, in one process; what the GPU computes, no transfers.

        The times of single runs are trusted if they agree with trtexec's own summary. Else every
        sample is the median that the summary tells.
        """
        plan, inputs = self._ready()
        file = self._fresh("times.json")
        text = self._call(
            "time",
            plan,
            lambda engine: time_command(self._usage, engine, runs, file, inputs, self._shapes),
        )
        median = gpu_median_ms(text)
        if median is None:
            raise TrtexecError(f"trtexec printed no GPU compute time of {self._model.name}")
        single = last_times_ms(_read(file), runs, median) if file.exists() else None
        return single or [median] * runs

    def layer_times(self, runs: int) -> list[LayerTime]:
        """Typical time per layer, from a profile that trtexec takes after the timed runs."""
        if self._usage.is_safe:
            raise TrtexecError("trtexec tells nothing of layers with --safe")
        plan, inputs = self._ready()
        profile, layers = self._fresh("profile.json"), self._fresh("layers.json")
        self._call(
            "profile",
            plan,
            lambda engine: profile_command(
                self._usage, engine, runs, profile, layers, inputs, self._shapes
            ),
        )
        if not profile.exists():
            refused = "--exportProfile" in self._program.refused
            why = "it doesn't know --exportProfile" if refused else "it wrote no file"
            raise TrtexecError(f"this trtexec can't tell the times of layers: {why}")
        info = _first_read(layers, plan.layers) or LayerInfo(())
        return layer_times_of(self._model.path, info, parse_profile(_read(profile)))

    def close(self) -> None:
        """Removes the session's files."""
        self._model.room.cleanup()

    def _open_shapes(self, feeds: Feeds) -> dict[str, tuple[int, ...]]:
        return {name: tuple(feeds[name].shape) for name in self._signature.open_inputs}

    def _plan_for(self, shapes: Shapes, earlier: Plan | None) -> Plan:
        if earlier is not None and earlier.takes(shapes):
            return earlier
        ranges = widened(self._usage.settings.shapes, shapes, earlier.ranges if earlier else {})
        plan = self._builder.build(ranges)
        if self._layers_path is not None and plan.layers is not None:
            with writing(Path(self._layers_path)):
                shutil.copyfile(plan.layers, self._layers_path)
        return plan

    def _ready(self) -> tuple[Plan, Mapping[str, Path]]:
        if self._timed is None or self._fed is None:
            raise ValueError("the model was given no feeds to run on")
        return self._timed, self._fed

    def _call(self, what: str, plan: Plan, command: Callable[[Sequence[str]], list[str]]) -> str:
        """Runs an engine: the built one or, if trtexec loads none, one that it builds anew.

        As long as it has loaded none, any failure may mean that it can't.
        """
        model, program, usage = self._model, self._program, self._usage
        anew = command(rebuild_arguments(usage, model.path, plan.built_from))
        if program.loads is False:
            return model.call(what, anew)
        try:
            text = model.call(what, command(load_arguments(usage, plan.path)))
        except TrtexecError as error:
            if program.loads:
                raise
            try:
                text = model.call(what, anew)
            except TrtexecError:
                raise error from None
            program.loads = False
            return text
        program.loads = True
        return text

    def _fresh(self, name: str) -> Path:
        path = self._model.folder / name
        path.unlink(missing_ok=True)
        return path


def _first_read(*paths: Path | None) -> LayerInfo | None:
    """The first list of layers that can be read; None if there is none.

    Raises:
        TrtexecError: If there are only broken ones: half a list tells wrong things.
    """
    broken = ""
    for path in paths:
        if path is not None and path.exists():
            try:
                return parse_layer_info(_read(path))
            except ValueError as error:
                broken = str(error)
    if broken:
        raise TrtexecError(f"what trtexec wrote about layers can't be read: {broken}")
    return None


def _read(path: Path, most: int = TEXT_BYTES) -> str:
    return read_bytes(path, most).decode(errors="replace")
