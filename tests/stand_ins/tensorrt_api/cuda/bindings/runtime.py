"""A stand-in for CUDA's runtime, for tests: there is no GPU behind it."""

from tests.stand_ins.tensorrt_api.cuda_runtime import *  # noqa: F403
