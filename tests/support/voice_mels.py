"""How far two log-mel sequences of the voice are apart."""

import numpy as np


def mel_distortion_db(estimate: np.ndarray, reference: np.ndarray) -> float:
    """Root mean square over the bands, mean over the frames."""
    squares = np.square(estimate.astype(np.float64) - reference).mean(axis=1)
    return float(np.sqrt(squares).mean() * 20 / np.log(10))
