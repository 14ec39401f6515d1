"""Serving on ONNX Runtime: requests in, answers out. Imports no torch; model packages contain a copy."""
