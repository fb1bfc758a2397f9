"""A stand-in for TensorRT's Python API and CUDA's bindings, for tests: there is no GPU behind it.

With this folder on PYTHONPATH, `tensorrt` and `cuda` are the stand-in. It computes what a model
says, by ONNX Runtime in the host's memory; all its times are simulated.
"""
