"""What is served: plain state, artifacts, ONNX."""
