"""Types of NumPy arrays by element, for annotations."""

from typing import Any

import numpy as np

Bools = np.ndarray[Any, np.dtype[np.bool_]]
Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Int64 = np.ndarray[Any, np.dtype[np.int64]]
UInt64 = np.ndarray[Any, np.dtype[np.uint64]]
