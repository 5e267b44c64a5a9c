"""`floor`: the compiled module `compiled`, or `twin`, which does the same in NumPy where `compiled` was not built."""

import importlib
import logging
import multiprocessing
import os
from typing import Any

from warmstore._native import twin


def _choose() -> Any:
    if os.environ.get("WARMSTORE_NATIVE") == "0":
        return twin
    try:
        return importlib.import_module("warmstore._native.compiled")
    except ImportError as error:
        if multiprocessing.parent_process() is None:
            logging.getLogger("warmstore").warning(
                "the compiled part of warmstore cannot be imported (%s), so rows are read with NumPy, which is slower; "
                "installing warmstore with a C compiler present builds it",
                error,
            )
        return twin


floor = _choose()
is_compiled = floor is not twin
