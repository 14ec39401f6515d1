"""Provide SageMaker's entry point of a package, code/inference.py; its imports are in the same folder."""

import sys
from pathlib import Path

if not __package__:  # in a package, not as container.serving.inference
    sys.path.insert(0, str(Path(__file__).resolve().parent))

from container.serving.handler import input_fn, model_fn, output_fn, predict_fn

__all__ = ["input_fn", "model_fn", "output_fn", "predict_fn"]
