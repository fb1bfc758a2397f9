"""A stand-in for CUDA's runtime under its old name, for tests: there is no GPU behind it."""

from tests.stand_ins.tensorrt_api.situation import VERSION

if VERSION >= (11,):  # gone in those of CUDA 13
    raise ModuleNotFoundError("No module named 'cuda.cudart'")

from tests.stand_ins.tensorrt_api.cuda_runtime import *  # noqa: F403
