"""The model on onnx_ir: load and save, index, fingerprints, folding, shapes."""
