"""The compiled floor, or its twin where that was not built."""

import logging
import multiprocessing
import os
from typing import Any

from warmstore._native import twin


def _chosen() -> Any:
    if os.environ.get("WARMSTORE_NATIVE") == "0":
        return twin
    try:
        from warmstore._native import compiled  # type: ignore[attr-defined]
    except ImportError as error:
        if multiprocessing.parent_process() is None:
            logging.getLogger("warmstore").warning(
                "the compiled part of warmstore is not here (%s), so rows are read with NumPy, which is slower; "
                "installing warmstore where there is a C compiler builds it",
                error,
            )
        return twin
    return compiled


floor = _chosen()
is_compiled = floor is not twin
