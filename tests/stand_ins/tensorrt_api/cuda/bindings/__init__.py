"""A stand-in for the bindings of CUDA, for tests: there is no GPU behind it."""

from tests.stand_ins.tensorrt_api.situation import VERSION

if VERSION < (10,):  # as with the bindings of that time, which were `cuda.cudart`
    raise ModuleNotFoundError("No module named 'cuda.bindings'")
