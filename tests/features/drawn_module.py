"""A module whose state is drawn, its samples, and a plain function that computes the same outputs."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from torch import nn

FORMS = ("tensor", "nested", "items", "half", "array", "column", "wide")
BROKEN, INTERRUPTED = -1.0, -2.0


@dataclass(frozen=True)
class Sample:
    """A sample with an id of some kind; its values follow from its number, which no other one has."""

    number: int
    kind: str
    width: int

    @property
    def id(self) -> Any:
        text = f"samples/{self.number}"
        kinds = {"int": self.number - 3, "str": text, "bytes": text.encode(), "tuple": (text, self.number)}
        return kinds[self.kind]


SAMPLES = [
    Sample(at + 1, kind, 2 + 3 * (at % 2)) for at, kind in enumerate(["int"] * 16 + ["str", "bytes", "tuple"] * 4)
]
WIDTHS = {width: [sample for sample in SAMPLES if sample.width == width] for width in (2, 5)}


@dataclass(frozen=True)
class State:
    """All that an output depends on besides the sample. The sums of any two states differ."""

    scale: int = 1
    offset: int = 0
    shift: int = 0
    hook: int = 0
    training: bool = False
    form: str = "tensor"
    # of the call
    argument: int | None = None
    autocast: bool = False
    default: torch.dtype = torch.float32


VALUES: dict[str, Any] = {
    "scale": (1, 2),
    "offset": (0, 100),
    "shift": (0, 200),
    "hook": (0, 800),
    "training": (False, True),
    "form": FORMS,
}


@dataclass
class Part:
    """A part of an output that is a dataclass."""

    values: torch.Tensor
    text: str


def shaped(form: str, y: torch.Tensor) -> Any:
    """An output of some structure."""
    if form == "nested":
        return {"a": (y, y[:, :1] > 50), "none": None, 3: Part(y.to(torch.int16), "same")}
    if form == "items":
        return [{"row": row[: int(row[0]) % 3], "text": f"é{row[0]:g}"} for row in y]
    if form == "wide":  # some of them fill a cache with a limit
        return y[:, :1] + torch.arange(8192).to(y.dtype)
    forms: dict[str, Callable[[torch.Tensor], Any]] = {
        "half": torch.Tensor.half,
        "array": torch.Tensor.numpy,
        "column": lambda y: y[:, 0],
    }
    return forms.get(form, torch.Tensor.clone)(y)


class Drawn(nn.Module):
    """The module whose state is drawn. `seen` has the numbers of all samples that it was given."""

    offset: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1), requires_grad=False)
        self.register_buffer("offset", torch.zeros(1))
        self.shift, self.form = 0, "tensor"
        self.inner = nn.Identity()
        self.hooks: list[Any] = []
        self.seen: list[int] = []
        self.eval()

    def forward(self, x: torch.Tensor, argument: int = 0) -> Any:
        self.seen.extend(int(number) for number in x[:, 0])
        if (x[:, 1] == BROKEN).any():
            raise ValueError("broken")
        if (x[:, 1] == INTERRUPTED).any():
            raise KeyboardInterrupt
        y = self.inner(x * self.scale + self.offset + self.shift + argument)
        if self.training:
            y = y + 1600
        y = nn.functional.linear(y, torch.eye(x.shape[1], dtype=torch.float32))
        return shaped(self.form, y * torch.ones(1))

    @torch.no_grad()
    def change(self, name: str, value: Any, how: int) -> None:
        """Give a part of the state another value, in one of the ways in which programs do."""
        if name == "scale":
            given = torch.full((1,), float(value))
            ways: list[Callable[[], Any]] = [
                lambda: self.scale.copy_(given),
                lambda: setattr(self, "scale", nn.Parameter(given, requires_grad=False)),
                lambda: self.load_state_dict({**self.state_dict(), "scale": given}),
                lambda: setattr(self.scale, "data", given),
            ]
            ways[how % 4]()
        elif name == "offset":
            if how % 2:
                self.offset.fill_(value)
            else:
                self.offset = torch.full((1,), float(value))
        elif name == "hook":
            while self.hooks:
                self.hooks.pop().remove()
            if value:
                self.hooks.append(self.inner.register_forward_hook(functools.partial(add, value)))
        elif name == "training":
            self.train(value)
        else:
            setattr(self, name, value)


def add(value: int, module: nn.Module, inputs: Any, output: torch.Tensor) -> torch.Tensor:
    return output + value


def inputs(samples: list[Sample]) -> torch.Tensor:
    return torch.tensor([[sample.number + at for at in range(sample.width)] for sample in samples]).float()


def expected(state: State, samples: list[Sample]) -> Any:
    """What the module computes for some samples in a state."""
    y = inputs(samples) * state.scale + state.offset + state.shift + (state.argument or 0) + state.hook
    y = y + 1600 * state.training
    y = y.bfloat16() if state.autocast else y
    return shaped(state.form, y * torch.ones(1, dtype=state.default))


def one(state: State, sample: Sample) -> Any:
    """The output of one sample, as a cache has it."""
    output = expected(state, [sample])
    if state.form == "nested":
        first, second = output["a"]
        return {**output, "a": (first[0], second[0]), 3: Part(output[3].values[0], output[3].text)}
    return np.asarray(output[0]) if state.form == "array" else output[0]


def same(one: Any, other: Any) -> bool:
    """Whether two outputs are equal bit for bit, with types, dtypes, shapes and devices, and without gradients."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        facts, others = (
            (each.dtype, each.shape, each.device, each.requires_grad, each.layout, bytes_of(each))
            for each in (one, other)
        )
        return facts == others
    if isinstance(one, np.ndarray):
        return (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())
    if isinstance(one, Part):
        return same(vars(one), vars(other))
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def bytes_of(tensor: torch.Tensor) -> bytes:
    return torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor).flatten().view(torch.uint8).numpy().tobytes()


def spoil(output: Any) -> None:
    """Write to an output, as a program may that owns it."""
    if isinstance(output, torch.Tensor | np.ndarray):
        output[...] = 1
    elif isinstance(output, Part):
        spoil(output.values)
    elif isinstance(output, dict | list | tuple):
        for part in output.values() if isinstance(output, dict) else output:
            spoil(part)


@dataclass(frozen=True)
class Batch:
    """Samples of one width, and how they are passed."""

    samples: list[Sample]
    ids: int = 0
    grad: str = "grad"
    argument: int | None = None
    autocast: bool = False
    default: torch.dtype = torch.float32
    broken: tuple[int, float] | None = None

    def arguments(self) -> tuple[torch.Tensor, Any]:
        """The input and the ids."""
        x = inputs(self.samples)
        if self.broken is not None:
            x[self.broken[0] % len(x), 1] = self.broken[1]
        ids: list[Any] = [sample.id for sample in self.samples]
        kinds = {sample.kind for sample in self.samples}
        if kinds == {"int"}:
            return x, [ids, np.array(ids), torch.tensor(ids), np.array(ids, np.int16)][self.ids % 4]
        if kinds == {"str"}:
            return x, [ids, np.array(ids), [*map(Path, ids)], tuple(ids)][self.ids % 4]
        objects = np.empty(len(ids), object)
        objects[:] = ids
        return x, objects if self.ids % 2 or kinds == {"tuple"} else ids

    def state(self, state: State) -> State:
        return replace(state, argument=self.argument, autocast=self.autocast, default=self.default)

    @contextlib.contextmanager
    def modes(self) -> Iterator[None]:
        """The modes of torch in which the call is made."""
        grads = {"grad": torch.enable_grad, "no": torch.no_grad, "inference": torch.inference_mode}
        before = torch.get_default_dtype()
        torch.set_default_dtype(self.default)
        try:
            with grads[self.grad](), torch.autocast("cpu", torch.bfloat16, enabled=self.autocast):
                yield
        finally:
            torch.set_default_dtype(before)


@st.composite
def batches(draw: st.DrawFn, *, plain: bool = False) -> Batch:
    width = draw(st.sampled_from([2, 2, 2, 5]))
    samples = draw(st.lists(st.sampled_from(WIDTHS[width]), min_size=1, max_size=6))
    batch = Batch(samples, draw(st.integers(0, 3)))
    if plain or draw(st.booleans()):
        return batch
    return replace(
        batch,
        grad=draw(st.sampled_from(["grad", "no", "inference"])),
        argument=draw(st.sampled_from([None, None, None, 400])),
        autocast=draw(st.sampled_from([False] * 5 + [True])),
        default=draw(st.sampled_from([torch.float32] * 5 + [torch.float64])),
        broken=draw(st.none() | st.tuples(st.integers(0, 5), st.sampled_from([BROKEN, INTERRUPTED]))),
    )
