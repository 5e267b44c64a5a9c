"""The arguments of one call: which of them carry one value per sample, and how to cut those to the misses.

A tensor or array whose first dimension is the number of ids is per sample, and so is a list of that length, or a tuple
of so many strings, as torch's collate function makes them; dicts, mappings such as tokenisers return, other tuples and
other lists are looked into.
Everything else goes to the module as it is, and is a setting of the call.
"""

import copy
from collections import UserDict
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import torch

from warmstore.errors import AmbiguousBatch, BadIds
from warmstore.identity import Identity
from warmstore.identity.files import Places
from warmstore.identity.identity import finished, walk_over
from warmstore.identity.plain import atom_text
from warmstore.identity.torch_kinds import tensor_text

BatchArgs = Collection[int | str] | None
_ARRAYS = (torch.Tensor, np.ndarray)
_BATCH = "a batch"
_PLACES = Places()


class Arguments:
    """Positional and keyword arguments for `count` samples.

    Args:
        batch_args: positions and names of the arguments that are per sample; None tells by length.
    """

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any], count: int, batch_args: BatchArgs) -> None:
        self.args = args
        self.kwargs = kwargs
        self._count = count
        self._batch_args = batch_args

    def check(self) -> None:
        """Raise BadIds when the first tensor, which is taken for the input, has another number of rows than ids.

        Where there is no tensor, the first list or tuple of strings is.
        """
        if self.args and self._batch_args is None and isinstance(self.args[0], torch.Tensor) and self.args[0].ndim:
            self._check_rows(0, self.args[0].shape[0])  # what nearly every call is like
            return
        for texts in (False, True):
            for key, value in (*enumerate(self.args), *self.kwargs.items()):
                if self._batch_args is not None and key not in self._batch_args:
                    continue
                rows = _first_rows(value, texts)
                if rows is not None:
                    self._check_rows(key, rows)
                    return

    def _check_rows(self, key: object, rows: int) -> None:
        if rows != self._count:
            raise BadIds(
                f"{self._count} cache_ids for {rows} samples (argument {key!r}): give one id per sample. "
                "If that argument is not the batch, name the ones that are with batch_args="
            )

    def device(self) -> torch.device | None:
        """Where the first tensor is."""
        for value in (*self.args, *self.kwargs.values()):
            found = _first_tensor(value)
            if found is not None:
                return found.device
        return None

    def fixed(self) -> dict[str, Any]:
        """By argument, what is the same for all samples: the value, with a mark in the place of batches in it."""
        rests = (
            (key, self._rest(value, self._wanted(key))) for key, value in (*enumerate(self.args), *self.kwargs.items())
        )
        return {f"argument {key}": rest for key, rest in rests if rest is not _BATCH}

    def take(self, which: torch.Tensor) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments for some of the samples.

        Args:
            which: int64 [m], their positions.
        """
        args = tuple(self._cut(value, self._wanted(at), which, f"argument {at}") for at, value in enumerate(self.args))
        kwargs = {name: self._cut(value, self._wanted(name), which, name) for name, value in self.kwargs.items()}
        return args, kwargs

    def _wanted(self, key: object) -> bool | None:
        return None if self._batch_args is None else key in self._batch_args

    def _is_batch(self, value: Any, wanted: bool | None, name: str = "") -> bool:
        if wanted is False:
            return False
        if isinstance(value, _ARRAYS):
            return value.ndim > 0 and len(value) == self._count
        if isinstance(value, list) and len(value) == self._count:
            nested = [one for one in value if isinstance(one, _ARRAYS)]
            if nested and wanted is None and all(one.ndim > 0 and len(one) == self._count for one in nested):
                raise AmbiguousBatch(
                    f"{name} is a list of {len(value)} tensors of {self._count} rows each, for {self._count} samples: "
                    "it may hold one tensor per sample or several batches. Pass a tuple for several batches, or stack "
                    "the samples"
                )
            return True
        return isinstance(value, tuple) and len(value) == self._count and all(type(one) is str for one in value)

    def _cut(self, value: Any, wanted: bool | None, which: torch.Tensor, name: str) -> Any:
        if wanted is False:
            return value
        if self._is_batch(value, wanted, name):
            if isinstance(value, torch.Tensor):
                return _rows_of(value, which)
            if isinstance(value, np.ndarray):
                return value[which.numpy()]
            return type(value)(value[at] for at in which.tolist())
        if is_mapping(value):
            cut = {key: self._cut(child, wanted, which, f"{name}[{key!r}]") for key, child in value.items()}
            return cut if type(value) is dict else _same_type(value, cut)
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return type(value)(*(self._cut(child, wanted, which, name) for child in value))
        if isinstance(value, list | tuple):
            return type(value)(self._cut(child, wanted, which, f"{name}[{at}]") for at, child in enumerate(value))
        return value

    def _rest(self, value: Any, wanted: bool | None) -> Any:
        if self._is_batch(value, wanted, "an argument"):
            return _BATCH
        if is_mapping(value):
            parts = {key: self._rest(child, wanted) for key, child in value.items() if key != "cache_ids"}
            return parts if any(part is not _BATCH for part in parts.values()) else _BATCH
        if isinstance(value, list | tuple):
            rests = [self._rest(child, wanted) for child in value]
            return rests if any(part is not _BATCH for part in rests) else _BATCH
        return value


def setting(name: str, value: Any, version: str | None, ignore: Collection[str]) -> Identity:
    """The identity of an argument, or part of one, that is the same for all samples.

    Raises:
        NoFingerprint: it cannot be told whether it changes.
    """
    walk = walk_over(value, name=name, ignore=ignore, called=False, patches={})
    return finished(walk, version if walk.unknown else None).require()


def text_of_setting(value: Any) -> str:
    """A text that differs where the identities of such arguments do. Called for every batch."""
    text = atom_text(value)
    if text is not None:
        return text + (_PLACES.stamp(str(value)) if isinstance(value, str | Path) else "")
    if type(value) is torch.Tensor:
        return tensor_text(value)
    if type(value) is dict:
        return repr([(atom_text(key) or key, text_of_setting(child)) for key, child in value.items()])
    if type(value) is list:
        return repr([text_of_setting(child) for child in value])
    return setting("", value, "any", ()).digest


def _rows_of(value: torch.Tensor, which: torch.Tensor) -> torch.Tensor:
    rows = value.index_select(0, which.to(value.device))
    for dimensions, layout in ((4, torch.channels_last), (5, torch.channels_last_3d)):
        # index_select forgets the memory format, and with it which kernels run.
        if value.ndim == dimensions and not value.is_contiguous() and value.is_contiguous(memory_format=layout):
            return rows.contiguous(memory_format=layout)
    return rows


def is_mapping(value: Any) -> bool:
    """Whether a value is a dict, or is used like one."""
    return isinstance(value, dict | UserDict)


def _same_type(value: Any, cut: dict[Any, Any]) -> Any:
    # transformers' BatchEncoding and friends: a dict with methods of its own.
    other = copy.copy(value)
    other.update(cut)
    return other


def _first_rows(value: Any, texts: bool) -> int | None:
    if isinstance(value, _ARRAYS):
        return len(value) if value.ndim else None
    if texts and isinstance(value, list | tuple) and value and isinstance(value[0], str):
        return len(value)
    if is_mapping(value) or isinstance(value, list | tuple):
        children = value.values() if is_mapping(value) else value
        first = next((rows for child in children if (rows := _first_rows(child, texts)) is not None), None)
        return None if isinstance(value, list) else first  # one tensor per sample, of any length each
    return None


def _first_tensor(value: Any) -> torch.Tensor | None:
    if isinstance(value, torch.Tensor):
        return value
    if is_mapping(value) or isinstance(value, list | tuple):
        children = value.values() if is_mapping(value) else value
        return next((found for child in children if (found := _first_tensor(child)) is not None), None)
    return None
