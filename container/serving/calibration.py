"""Apply the calibration.json of a package."""

import numpy as np

from contracts.package_inputs import CalibrationMap


def calibrated(probabilities: np.ndarray, calibration: CalibrationMap) -> np.ndarray:
    """Interpolate linearly between the points, flat beyond the first and the last. [N, 2] -> [N, 2]"""
    positive = np.interp(probabilities[:, 1], calibration.scores, calibration.probabilities)
    return np.stack([1 - positive, positive], axis=1)
