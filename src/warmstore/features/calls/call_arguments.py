"""The arguments of one call: which have one row per sample, and how these are cut to the misses.

A part of the arguments may be per sample if its length is the number of ids, and if it is a tensor, an array, a list or
a tuple of strings, as torch's collate function makes them. Dicts, mappings such as those of tokenisers, and other lists
and tuples are searched for such parts. Everything else is a setting of the call.

The role of a part is decided once and stored in `Roles`. A part whose length once differed from the batch size is the
same for all samples from then on. A part that fitted two batches of different sizes is per sample. Until then, a part
whose shape only fits "per sample" is treated as such, but is not cut. A part whose shape fits both is open.
"""

import copy
from collections import UserDict
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from warmstore.errors import AmbiguousBatch, BadIds
from warmstore.records.format.array_interop import on_device
from warmstore.tree.containers import opened

BatchArgs = Collection[int | str | tuple[Any, ...]] | None
Path = tuple[Any, ...]
"""Position or name of an argument, then the keys, names and positions inside of it."""

Roles = dict[str, bool | int]
"""The role of each part, by the text of its path. True or False: whether the part is per sample, proven. A number: the
part fitted batches of this size only, and is treated as per sample; if the number is negative, the part is open."""

IDS = "cache_ids"
"""The key of the ids in a dict argument."""

PER_SAMPLE = "arguments per sample"
"""The setting that says which parts of the arguments are batches."""

_ARRAYS = (torch.Tensor, np.ndarray)
_BATCH = "a batch"
_NUMBERS = (int, float, bool, type(None))
_FEW = 4  # most numbers in a list that is likely a setting: a size, a range, a mean per channel


class Arguments:
    """Positional and keyword arguments for `count` samples.

    Args:
        batch_args: positions and names of the arguments that are per sample, or paths of parts of them; None infers
            them from lengths.
        roles: the roles found in earlier calls; `check` adds those of this call.
        ids: the object that has the ids; as a part of an argument it is per sample.
    """

    def __init__(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        count: int,
        batch_args: BatchArgs,
        roles: Roles | None = None,
        ids: Any = None,
    ) -> None:
        self.args = args
        self.kwargs = kwargs
        self._count = count
        self._named = None if batch_args is None else [arg if isinstance(arg, tuple) else (arg,) for arg in batch_args]
        self._roles: Roles = {} if roles is None else roles
        self._ids = ids
        self._parts: dict[str, bool] | None = None  # of every part that could be per sample: whether it is
        self._input: tuple[Path, Any] | None = None
        self._unproven = False
        self.open: tuple[str, Any] | None = None
        """The path of a part that may be per sample or the same for all samples, and the part."""

    @property
    def may_cut(self) -> bool:
        """Whether all parts treated as per sample are proven to be, so that they may be cut to some samples."""
        self.check()
        return not self._unproven

    def device(self) -> torch.device | None:
        """The device of the first tensor."""
        found = self._first_tensor()
        return None if found is None else found.device

    def has_values(self) -> bool:
        """Whether the first tensor has values, and not a shape alone, as on the meta device or where torch traces."""
        found = self._first_tensor()
        return found is None or not (found.is_meta or type(found).__module__ == "torch._subclasses.fake_tensor")

    def _first_tensor(self) -> torch.Tensor | None:
        found = (_first_tensor(value) for value in (*self.args, *self.kwargs.values()))
        return next((tensor for tensor in found if tensor is not None), None)

    def fixed(self, names: Sequence[str] = ()) -> dict[str, Any]:
        """The values that are the same for all samples, by argument. A mark replaces the parts that are batches.

        Which parts are batches is one more value, since an output depends on whether it was given a mask. It is left
        out where the first argument is the only batch.

        Args:
            names: the names of positional parameters, so that an argument is the same by position and by name.
        """
        self.check()
        batches: list[Path] = []
        rests = [(key, self._rest(value, (key,), batches)) for key, value in self._items()]
        fixed = {f"argument {key}": rest for key, rest in rests if rest is not _BATCH}
        of_position = dict(enumerate(names))
        texts = sorted(_text((of_position.get(path[0], path[0]), *path[1:])) for path in batches)
        if texts and texts != [_text((of_position.get(0, 0),))]:
            fixed[PER_SAMPLE] = ", ".join(texts)
        return fixed

    def take(self, which: torch.Tensor) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments for some of the samples.

        Args:
            which: int64 [m], their positions.
        """
        self.check()
        args = tuple(self._cut(value, (at,), which) for at, value in enumerate(self.args))
        return args, {name: self._cut(value, (name,), which) for name, value in self.kwargs.items()}

    def _items(self) -> Iterator[tuple[int | str, Any]]:
        yield from enumerate(self.args)
        yield from self.kwargs.items()

    # Deciding

    def check(self) -> None:
        """Decide which parts are per sample, unless this is decided.

        Raises:
            BadIds: the input has another number of rows than ids. The input is the first tensor, else the first list or
                tuple of strings.
            AmbiguousBatch: a part that was per sample in an earlier batch has another length than this one.
        """
        if self._parts is not None:
            return
        self._input = self._find_input()
        if self._input is not None and len(self._input[1]) != self._count:
            self._raise_rows(*self._input)
        if self._input is not None and len(self.args) == 1 and not self.kwargs and isinstance(self.args[0], _ARRAYS):
            self._parts = {_text((0,)): True}  # it must be the batch
            return
        new_roles: Roles = {}
        parts: dict[str, bool] = {}
        for key, value in self._items():
            self._visit(value, (key,), parts, new_roles)
        self._parts = parts
        if any(parts.values()) and self._count:  # else the number of samples is unknown
            self._roles.update(new_roles)
        self._unproven = any(batch and type(self._roles.get(path)) is int for path, batch in parts.items())

    def _find_input(self) -> tuple[Path, Any] | None:
        if self._named is None and self.args and isinstance(self.args[0], torch.Tensor) and self.args[0].ndim:
            return (0,), self.args[0]  # the common case
        for kind in ("array", "texts"):
            for key, value in self._items():
                found = self._first(value, (key,), kind)
                if found is not None:
                    return found
        lists = (((key,), value) for key, value in self._items() if isinstance(value, list))
        fitting = ((path, value) for path, value in lists if len(value) == self._count)
        return next(((path, value) for path, value in fitting if self._is_named(path) is not False), None)

    def _first(self, value: Any, path: Path, kind: str) -> tuple[Path, Any] | None:
        named = self._is_named(path)
        if named is False:
            return None
        if isinstance(value, _ARRAYS):
            return (path, value) if value.ndim and named != "inside" else None
        if kind == "texts" and isinstance(value, list | tuple) and value and isinstance(value[0], str):
            return (path, value) if named != "inside" else None
        if isinstance(value, list):
            return None  # one tensor per sample, of any length each
        found = (self._first(child, (*path, key), kind) for key, child in _children(value))
        return next(filter(None, found), None)

    def _raise_rows(self, path: Path, value: Any) -> None:
        rows = len(value)
        raise BadIds(
            f"{self._count} cache_ids for {rows} samples ({_described(path)}): give one id per sample. "
            "If that argument is not the batch, name the ones that are with batch_args="
        )

    def _visit(self, value: Any, path: Path, parts: dict[str, bool], new_roles: Roles) -> None:
        """Decide the role of a value and of all parts in it."""
        named = self._is_named(path)
        if named is False:
            return
        if named != "inside" and _is_sized(value):
            batch = self._decide_part(value, path, named is True, new_roles)
            parts[_text(path)] = batch
            if batch or isinstance(value, _ARRAYS):
                return
        for key, child in _children(value):
            self._visit(child, (*path, key), parts, new_roles)

    def _decide_part(self, value: Any, path: Path, named: bool, new_roles: Roles) -> bool:
        at, rows, count = _text(path), len(value), self._count
        if isinstance(value, _ARRAYS) and path in (self._named or ()):
            if rows != count:
                self._raise_rows(path, value)
            return True
        role = self._role(value, path, named)
        new_roles[at] = role
        if role is False:
            return False
        if rows != count:
            raise AmbiguousBatch(
                f"{_described(path)} has {rows} rows for {count} samples, and had one per sample in an earlier batch. "
                "Name the arguments that are batches with CachedModule(batch_args=), such as "
                f"{[path if len(path) > 1 else path[0]]}. If these differ from the batches so far, use another cache id"
            )
        if type(role) is int and role < 0:
            self.open = self.open or (_described(path), value)
        return True

    def _role(self, value: Any, path: Path, named: bool) -> bool | int:
        """The role of a part, as in `Roles`."""
        fits, count = len(value) == self._count, self._count
        known = self._roles.get(_text(path))
        if type(known) is bool:
            return known
        if known is not None:
            return (known if abs(known) == count else True) if fits else known > 0
        if not fits:
            return False
        if value is self._ids or path[-1] == IDS:
            return True
        nested = [item for item in value if isinstance(item, _ARRAYS)] if isinstance(value, list) else []
        if nested and count > 1 and not named and all(item.ndim > 0 and len(item) == count for item in nested):
            raise AmbiguousBatch(
                f"{_described(path)} is a list of {len(value)} tensors of {count} rows each, for {count} samples: "
                "it may hold one tensor per sample or several batches. Pass a tuple for several batches, or stack "
                "the samples"
            )
        if self._input is not None and value is self._input[1]:
            return count if nested else True  # tensors in a list may be several batches, or settings
        return count if named or self._is_plain(value) else -count

    def _is_plain(self, value: Any) -> bool:
        """Whether the shape of a part that fits the batch only fits one row per sample."""
        count = self._count
        if self._input is not None and _likeness(value) == _likeness(self._input[1]):
            return True  # such as the tensors of a tokeniser
        if count == 1:
            return False  # parts that are the same for all samples often have size 1
        if isinstance(value, _ARRAYS):
            return value.ndim < 2 or value.shape[1] != count  # else it may be a mask [T, T], with T the batch size
        if isinstance(value, tuple):
            return True
        if count <= _FEW and all(isinstance(item, _NUMBERS) for item in value):
            return False
        return not all(isinstance(item, list | tuple) and len(item) == count for item in value)

    def _is_named(self, path: Path) -> bool | str | None:
        """Whether `batch_args` names the part at a path; "inside" if it names a part of this part; None without it."""
        if self._named is None:
            return None
        if any(path[: len(named)] == named for named in self._named):
            return True
        return "inside" if any(named[: len(path)] == path for named in self._named) else False

    # Applying the roles

    def _is_batch(self, path: Path) -> bool:
        assert self._parts is not None
        return self._parts.get(_text(path), False)

    def _cut(self, value: Any, path: Path, which: torch.Tensor) -> Any:
        if _is_sized(value) and self._is_batch(path):
            if isinstance(value, torch.Tensor):
                return _rows_of(value, which)
            if isinstance(value, np.ndarray):
                return value[which.numpy()]
            return type(value)(value[at] for at in which.tolist())
        if is_mapping(value):
            cut = {key: self._cut(child, (*path, key), which) for key, child in value.items()}
            if type(value) is dict:
                return cut
            other = copy.copy(value)  # it has methods of its own, as the BatchEncoding of transformers has
            other.update(cut)
            return other
        if isinstance(value, list | tuple):
            children = [self._cut(child, (*path, key), which) for key, child in _children(value)]
            return type(value)(*children) if hasattr(value, "_fields") else type(value)(children)
        return value

    def _rest(self, value: Any, path: Path, batches: list[Path]) -> Any:
        """A value without the batches in it, whose paths are added to `batches`."""
        if path[-1] == IDS:
            return _BATCH
        if value is self._ids or (_is_sized(value) and self._is_batch(path)):
            batches.append(path)
            return _BATCH
        children = _children(value)
        rests = [(key, self._rest(child, (*path, key), batches)) for key, child in children]
        if all(rest is child for (_, rest), (_, child) in zip(rests, children, strict=True)):
            return value
        if all(rest is _BATCH for _, rest in rests):
            return _BATCH
        if is_mapping(value):
            return dict(rests)
        parts = [rest for _, rest in rests]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)


def is_mapping(value: Any) -> bool:
    """Whether a value is a dict or a `UserDict`."""
    return isinstance(value, dict | UserDict)


def _is_sized(value: Any) -> bool:
    """Whether a value could hold one item per sample."""
    if isinstance(value, _ARRAYS):
        return value.ndim > 0
    if isinstance(value, tuple):
        return bool(value) and all(type(item) is str for item in value)
    return isinstance(value, list)


def _children(value: Any) -> list[tuple[Any, Any]]:
    if is_mapping(value):
        return list(value.items())
    container = opened(value) if isinstance(value, list | tuple) else None
    return [] if container is None else list(container.items())


def _likeness(value: Any) -> Any:
    """A value that is equal for parts of the same kind and shape."""
    if isinstance(value, _ARRAYS):
        return str(value.dtype), tuple(value.shape)
    inner = value[0] if value else None
    if isinstance(inner, list | tuple):
        return type(inner), len(value), len(inner)
    return type(inner), len(value)


def _text(path: Path) -> str:
    return repr(path[0]) if len(path) == 1 else repr(path[0]) + "".join(f"[{key!r}]" for key in path[1:])


def _described(path: Path) -> str:
    return f"argument {_text(path)}"


def _rows_of(value: torch.Tensor, which: torch.Tensor) -> torch.Tensor:
    rows = value.index_select(0, on_device(which, value.device))
    for dimensions, layout in ((4, torch.channels_last), (5, torch.channels_last_3d)):
        # index_select loses the memory format, which decides which kernels run.
        if value.ndim == dimensions and not value.is_contiguous() and value.is_contiguous(memory_format=layout):
            return rows.contiguous(memory_format=layout)
    return rows


def _first_tensor(value: Any) -> torch.Tensor | None:
    if isinstance(value, torch.Tensor):
        return value
    if is_mapping(value) or isinstance(value, list | tuple):
        children = value.values() if is_mapping(value) else value
        return next((found for child in children if (found := _first_tensor(child)) is not None), None)
    return None
