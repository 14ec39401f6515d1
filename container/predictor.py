"""Give users the predictor under its public name: from container.predictor import Predictor."""

from container.serving.predictor import Predictor

__all__ = ["Predictor"]
