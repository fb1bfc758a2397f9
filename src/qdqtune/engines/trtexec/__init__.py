"""trtexec, the program that comes with TensorRT: builds and times models in its own process."""
