"""TensorRT and TensorRT-RTX: one API, two libraries; and the files that both write."""
