"""A residual Add reads the quantized value of what is quantized for another op anyway."""

from __future__ import annotations

from qdqtune.graph._op_classes import is_op
from qdqtune.rules._placement_draft import Draft, rule


# Seen with TensorRT 8.6 on a ConvNeXt: where the residual branch reads floats, not the integers of
# the Conv, the model is slower than in float16.
@rule(
    "shared tensor",
    "Otherwise the tensor is written twice, as integers and as floats, and both have to live "
    "until the branches meet.",
)
def shared_tensors(draft: Draft) -> None:
    for name in sorted(draft.chosen):
        for tensor in draft.activations(draft.index.node[name]):
            for edge in draft.index.readers(tensor):
                reader = draft.index.node.get(edge.node)
                if is_op(reader, "Add") and not (draft.is_left(reader) or draft.is_chosen(reader)):
                    draft.add(edge, [name])
