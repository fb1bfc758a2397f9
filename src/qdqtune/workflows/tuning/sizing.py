"""The size of every tensor in a model, as it runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import onnx_ir as ir

from qdqtune.calibration.observed_shapes import observe_shapes, unknown_tensors
from qdqtune.engines.isolated import Worker
from qdqtune.graph.index import GraphIndex
from qdqtune.graph.prepared_model import PreparedModel
from qdqtune.graph.shapes import at_shapes, infer_shapes
from qdqtune.workflows.sample_provider import SampleProvider


@contextmanager
def all_sizes(
    base: PreparedModel, runner: Worker, provider: SampleProvider
) -> Iterator[GraphIndex]:
    """Let all shapes be known for a while, also those of the model's own inputs and outputs.

    Args:
        base: The model; on leaving, every shape is what it was.
        runner: Of the reference engine, for shapes that can't be inferred.
        provider: What the model is run on.

    Yields:
        An index with these shapes.
    """
    graph = base.index.model.graph
    with at_shapes(base.index.model, provider.shapes):
        for value in graph.inputs:
            shape = provider.shapes.get(value.name or "")
            if shape is not None:
                value.shape = ir.Shape(shape)
        for value in graph.outputs:
            if value.producer() is not None:
                value.shape = None
        infer_shapes(base.index.model)
        if unknown_tensors(base.index):
            found = observe_shapes(base, runner, next(iter(provider.evaluation_samples())))
            for name, shape in found.items():
                base.index.value[name].shape = ir.Shape(shape)
        yield GraphIndex(base.index.model)
