"""Chi-square for tests of randomness. All draws are functions of their seeds, so that a test passes always or never."""

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike


def surprise(counts: Any, likely: ArrayLike | None = None) -> float:
    """How probable counts this uneven are where each bin has the share `likely` says, or the same share.

    Wilson and Hilferty, "The distribution of chi-square" (PNAS 1931): close enough for a bar at one in a million.
    """
    counts = np.asarray(counts, np.float64).ravel()
    shares = np.ones(len(counts)) if likely is None else np.asarray(likely, np.float64).ravel()
    expected = counts.sum() * shares / shares.sum()
    assert expected.min() > 5, "too few counts for chi-square"
    freedom = len(counts) - 1
    statistic = float(((counts - expected) ** 2 / expected).sum())
    spread = 2 / (9 * freedom)
    return math.erfc(((statistic / freedom) ** (1 / 3) - 1 + spread) / math.sqrt(2 * spread)) / 2
