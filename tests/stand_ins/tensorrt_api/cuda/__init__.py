"""A stand-in for the bindings of CUDA, for tests: there is no GPU behind it."""
