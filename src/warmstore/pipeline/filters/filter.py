"""A filter of a pipeline: a predicate of the samples after some of the steps."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from warmstore.pipeline.steps import Step
from warmstore.records.format.array_interop import is_jax_array, is_tensor, to_numpy


@dataclass(frozen=True)
class Filter:
    """One filter.

    predicate: the function, as a step that gives True or False. after: the number of steps before it. folder: where
    its answers are kept; None for the folder of a plan. workers: processes that evaluate it; None chooses.
    """

    predicate: Step
    after: int
    folder: Path | None = None
    workers: int | None = None


def as_answer(value: Any, name: str, index: int) -> bool:
    """The result of a predicate for a sample as a bool.

    Raises:
        TypeError: it is neither True nor False, as if the function has no `return`.
    """
    if is_tensor(value) or is_jax_array(value):
        value = to_numpy(value)
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value[()]
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"filter {name!r} must return True or False; it returned {value!r:.80} for sample {index:,}")
    return bool(value)
