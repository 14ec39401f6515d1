"""Serve models on ONNX Runtime. Imports no torch; model packages contain a copy."""
