"""A stand-in for what newer bindings of CUDA have beside the runtime, for tests."""

from typing import Any

from tests.stand_ins.tensorrt_api.situation import VERSION

if VERSION < (11,):
    raise ModuleNotFoundError("No module named 'cuda.bindings.utils'")


def get_cuda_native_handle(handle: Any) -> int:
    """The number of a stream, or of something else."""
    return int(handle)
