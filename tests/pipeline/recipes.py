"""Samples whose parts share memory, made from recipes, and steps that write into them. Importable, for any process.

A recipe is a list: the kind of a part, and what it takes.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

import hypothesis.strategies as st
import numpy as np
import torch

import warmstore as ws
from warmstore.pipeline.pipeline import Pipeline

SAMPLES = 24
VIEWS = ("whole", "rows", "turned", "flat", "reversed", "every", "left", "right", "broadcast", "frozen")
OWN = ("own", "torch", "tensor", "numbers", "bytes", "again")
OUTSIDE = ("table", "tables", "source")


@dataclasses.dataclass
class Box:
    content: Any
    size: int = 3


def base(index: int, number: int) -> np.ndarray[Any, Any]:
    """Memory of a sample's own."""
    dtype = np.float32 if number else np.int16
    return np.random.default_rng([index, number]).integers(0, 50, (3, 4)).astype(dtype)


def view(array: Any, how: str) -> Any:
    """A part of an array, of NumPy or torch."""
    if how == "broadcast":
        return (
            np.broadcast_to(array[0], (2, *array[0].shape))
            if isinstance(array, np.ndarray)
            else array[:1].expand(2, -1)
        )
    if how == "frozen" and isinstance(array, np.ndarray):
        array = array[:]
        array.flags.writeable = False
        return array
    if how == "reversed" and isinstance(array, np.ndarray):
        return array[::-1]
    if how == "turned":
        return array.T
    if how == "flat":
        return array.reshape(-1)
    return {"rows": array[1:], "every": array[::2], "left": array[:, :2], "right": array[:, 2:]}.get(how, array)


def make(raw: Any, recipes: Any, tables: Any) -> Any:
    """A sample by the recipe that its turn comes to."""
    index = raw if isinstance(raw, int) else int(raw["index"])
    return _Making(index, raw, tables).make(recipes[0 if index % 7 else -1])


class _Making:
    def __init__(self, index: int, raw: Any, tables: Any) -> None:
        self._index, self._raw, self._tables = index, raw, tables
        self._bases = [base(index, number) for number in range(2)]
        self._tensors = [torch.from_numpy(one).clone() for one in self._bases]
        self._made: list[Any] = []

    def make(self, recipe: Any) -> Any:
        kind, what = recipe
        if kind == "again":
            return self._made[what % len(self._made)] if self._made else None
        if kind in ("dict", "list", "tuple", "box"):
            parts = [self.make(child) for child in what]
            made: Any = {
                "dict": lambda: {str(at): part for at, part in enumerate(parts)},
                "list": lambda: parts,
                "tuple": lambda: tuple(parts),
                "box": lambda: Box(parts),
            }[kind]()
        else:
            made = self._leaf(kind, *what)
        self._made.append(made)
        return made

    def _leaf(self, kind: str, number: int, how: str) -> Any:
        if kind == "numbers":
            return [self._index, number]
        if kind == "bytes":
            return bytearray([self._index, number])
        if kind == "torch":
            return view(torch.from_numpy(self._bases[number]), how)
        if kind == "tensor":
            return view(self._tensors[number], how)
        if kind == "table":
            return view(self._tables[number], how)
        if kind == "tables":
            return view(torch.from_numpy(self._tables[number]), how)
        if kind == "source" and isinstance(self._raw, dict):
            return view(self._raw["x"], how) if number else self._raw
        return view(self._bases[number], how)


def parts(value: Any) -> Iterator[Any]:
    """All that can be written of a value, each once."""
    seen, todo = set(), [value]
    while todo:
        one = todo.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, dict):
            todo += one.values()
        elif isinstance(one, list | tuple):
            todo += one
        elif isinstance(one, Box):
            todo.append(one.content)
        if isinstance(one, dict | list | Box | bytearray | np.ndarray | torch.Tensor):
            yield one


def write(value: Any, number: int) -> Any:
    """Write into one part of a value, if it has any."""
    found = list(parts(value))
    if not found:
        return value
    part = found[number % len(found)]
    if isinstance(part, np.ndarray):
        if part.flags.writeable:
            part += part.dtype.type(1)
    elif isinstance(part, torch.Tensor):
        if 0 not in part.stride():
            part += 1
    elif isinstance(part, list):
        part.append(number)
    elif isinstance(part, bytearray):
        part += b"x"
    elif isinstance(part, dict):
        part["written"] = part.get("written", 0) + 1
    else:
        part.size += 1
    return value


def write_at_random(value: Any, rng: np.random.Generator, number: int) -> Any:
    """Write into one part, or not."""
    return write(value, number) if rng.random() < 0.3 else value


def fresh(value: Any) -> Any:
    """A value that shares no memory."""
    return described(value)


def described(value: Any) -> bytes:
    """All there is to a value, once for every place that it is found in."""
    if isinstance(value, dict):
        return b"{%s}" % b",".join(b"%s:%s" % (str(key).encode(), described(part)) for key, part in value.items())
    if isinstance(value, list | tuple):
        return b"%s(%s)" % (type(value).__name__.encode(), b",".join(map(described, value)))
    if isinstance(value, Box):
        return b"Box(%s,%d)" % (described(value.content), value.size)
    if isinstance(value, torch.Tensor):
        return b"tensor%s %s" % (str(value.dtype).encode(), described(value.numpy()))
    if isinstance(value, np.ndarray):
        head = f"{value.dtype}{value.shape}{value.flags.writeable}".encode()
        return head + value.tobytes()
    return repr(value).encode()


@dataclasses.dataclass(frozen=True)
class Plot:
    """A pipeline that can be made again as a new process would. steps: number of the part, and whether at random."""

    source: str
    recipes: list[Any]
    writes: list[tuple[int, bool]]
    describes: bool

    @property
    def is_private(self) -> bool:
        """Whether no sample has memory from outside."""
        return not any(kind in repr(self.recipes) for kind in OUTSIDE)

    def pipe(self) -> Pipeline:
        """The pipeline, with tables and samples that no step has written to yet."""
        tables = [base(99, number) for number in range(2)]
        samples: Any = range(SAMPLES)
        if self.source == "dicts":
            samples = [{"index": index, "x": base(index, 1)} for index in range(SAMPLES)]
        pipe = ws.Pipeline(samples).step(make, recipes=self.recipes, tables=tables)
        for at, (number, random) in enumerate(self.writes):
            pipe = pipe.step(write_at_random if random else write, random=random, number=number, name=f"write {at}")
        return pipe.step(described) if self.describes else pipe


def recipes() -> st.SearchStrategy[Any]:
    """Recipes of samples, about half of which have memory from outside."""
    leaf = st.tuples(st.integers(0, 1), st.sampled_from(VIEWS))
    own = st.tuples(st.sampled_from(OWN[:-1]), leaf)
    again = st.tuples(st.just("again"), st.integers(0, 5))
    outside = st.tuples(st.sampled_from(OUTSIDE), leaf)

    def nested(kinds: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        return st.recursive(
            kinds,
            lambda inner: st.tuples(st.sampled_from(["dict", "list", "tuple", "box"]), st.lists(inner, max_size=4)),
            max_leaves=6,
        )

    whole = st.lists(nested(own | again), min_size=1, max_size=4) | st.lists(nested(own | again | outside), min_size=1)
    return whole.map(lambda children: ("dict", children))


def plots() -> st.SearchStrategy[Plot]:
    """Pipelines of a making step, some that write, and perhaps one that describes what has become of the sample."""
    return st.builds(
        Plot,
        st.sampled_from(["range", "dicts"]),
        st.lists(recipes(), min_size=1, max_size=2),
        st.lists(st.tuples(st.integers(0, 7), st.booleans()), max_size=3),
        st.just(True),
    )
