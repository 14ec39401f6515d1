"""The served model: requests in, answers out, on ONNX Runtime. Imports no torch; packages carry a copy of this."""
