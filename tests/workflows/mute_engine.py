"""Stand-ins of the simulated engine: one that doesn't tell its layers, and one that refuses.

Option of its own: ``refuses``: the name of a node that must not be quantized, ``*`` for all.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import onnx

from qdqtune.engines._entries import EngineEntry
from qdqtune.engines._interface import SessionOptions
from qdqtune.records._measurement import EngineInfo, LayerTime
from qdqtune.testing.simulated import SimulatedEngine

MUTE = EngineEntry(
    "mute",
    "it is a stand-in of the tests",
    module="qdqtune",
    worker_class="tests.workflows.mute_engine:MuteEngine",
    measures=False,
)
REFUSING = replace(MUTE, name="refusing", worker_class="tests.workflows.mute_engine:RefusingEngine")

_OWN = "refuses"


class MuteEngine(SimulatedEngine):
    """Times models, and doesn't say where the time goes."""

    def info(self, options: SessionOptions) -> EngineInfo:
        return replace(super().info(options), name="mute")

    def open(self, path: str, options: SessionOptions) -> Any:
        session = super().open(path, options)
        session.layer_times = _tells_nothing  # type: ignore[method-assign]
        return session


def _tells_nothing(runs: int) -> list[LayerTime]:
    raise NotImplementedError(f"no layers, not even of {runs} runs")


class RefusingEngine(SimulatedEngine):
    """Opens only models in which some node is float."""

    def info(self, options: SessionOptions) -> EngineInfo:
        found = super().info(_without_own(options))
        own = options.engine_options.get(_OWN, "")
        return replace(found, name="refusing", options={**found.options, _OWN: own})

    def open(self, path: str, options: SessionOptions) -> Any:
        refused = options.engine_options.get(_OWN, "")
        nodes = onnx.load(path, load_external_data=False).graph.node
        made = {node.output[0] for node in nodes if node.op_type == "DequantizeLinear"}
        # By the weight: what a float op reads may be quantized for another one.
        mine = [node for node in nodes if refused in (node.name, "*")]
        if any(made.intersection(node.input[1:2]) for node in mine):
            raise RuntimeError(f"no kernel for {refused}")
        return super().open(path, _without_own(options))


def _without_own(options: SessionOptions) -> SessionOptions:
    kept = {key: value for key, value in options.engine_options.items() if key != _OWN}
    return replace(options, engine_options=kept)
