"""The exported model: state dict, artifacts, ONNX."""
