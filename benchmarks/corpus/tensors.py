"""What torch offers beyond layers, and what breaks graphs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

from benchmarks.corpus.program import Compile, Step, infers, mlp, program, state, trains


class Normed(nn.Module):
    def __init__(self, norm: Any) -> None:
        super().__init__()
        self.first, self.second = norm(nn.Linear(8, 16)), norm(nn.Linear(16, 8))

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.relu(self.first(x)))


@program()
def weight_normed(compile: Compile) -> Step:
    """Linear layers under `parametrizations.weight_norm`, trained."""
    return trains(Normed(weight_norm), compile, torch.randn(4, 8))


@program()
def spectral_normed(compile: Compile) -> Step:
    """Linear layers under `parametrizations.spectral_norm`, trained."""
    return trains(Normed(spectral_norm), compile, torch.randn(4, 8))


class Body(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = mlp()

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)


def _doubled(module: nn.Module, args: Any, output: Tensor) -> Tensor:
    return output * 2


@program()
def hook_inside(compile: Compile) -> Step:
    """A forward hook on an inner module, trained."""
    model = Body()
    model.body[0].register_forward_hook(_doubled)  # type: ignore[index]
    return trains(model, compile, torch.randn(4, 16))


@program()
def hook_on_the_root(compile: Compile) -> Step:
    """A forward hook on the module that is compiled, trained."""
    model = Body()
    model.register_forward_hook(_doubled)
    return trains(model, compile, torch.randn(4, 16))


@program()
def features_by_hook(compile: Compile) -> Step:
    """Hooks made in a function keep the outputs of inner modules in a dict."""
    model, kept, x = Body(), {}, torch.randn(4, 16)
    for name, module in model.body.named_children():
        module.register_forward_hook(lambda _, args, output, name=name: kept.__setitem__(name, output.detach()))
    compiled = compile(model)

    def step() -> object:
        with torch.no_grad():
            return compiled(x), [kept[name] for name in sorted(kept)]

    return step


class Printing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x))
        print("", end="")
        return self.second(x)


@program()
def break_by_print(compile: Compile) -> Step:
    """A graph break by print, trained."""
    return trains(Printing(), compile, torch.randn(4, 8))


class Itemed(Printing):
    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x))
        scale = x.abs().max().item()
        return self.second(x / max(scale, 1.0))


@program()
def break_by_item(compile: Compile) -> Step:
    """A graph break by .item(), trained."""
    return trains(Itemed(), compile, torch.randn(4, 8))


class Branching(Printing):
    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        return self.second(x) if x.sum() > 0 else -x


@program(steps=3)
def break_by_branch(compile: Compile) -> Step:
    """A branch that depends on data, taken both ways."""
    compiled, x, count = compile(Branching()), torch.randn(4, 8), 0

    def step() -> object:
        nonlocal count
        count += 1
        with torch.no_grad():
            return compiled(x if count % 2 else -x)

    return step


@torch.compiler.disable
def _outside(x: Tensor) -> Tensor:
    return x.clamp(-1, 1)


class Disabled(Printing):
    def forward(self, x: Tensor) -> Tensor:
        return self.second(_outside(self.first(x)))


@program()
def disabled_part(compile: Compile) -> Step:
    """A helper under `torch.compiler.disable` amid the forward, trained."""
    return trains(Disabled(), compile, torch.randn(4, 8))


@program(steps=3)
def three_batch_sizes(compile: Compile) -> Step:
    """Batches of three sizes, without gradients."""
    compiled, sizes = compile(Body()), iter((4, 6, 9))

    def step() -> object:
        with torch.no_grad():
            return compiled(torch.ones(next(sizes), 16).cumsum(0))

    return step


@program(steps=3)
def trained_sizes(compile: Compile) -> Step:
    """Sequences of three lengths, trained."""
    model, lengths = Body(), iter((5, 8, 3))
    compiled = compile(model)

    def step() -> object:
        model.zero_grad()
        y = compiled(torch.ones(2, next(lengths), 16).cumsum(1))
        y.square().mean().backward()
        return y.detach(), state(model)

    return step


class StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.sign()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        return gradient * (x.abs() <= 1)


class Binary(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return StraightThrough.apply(self.linear(x)) * x


@program()
def custom_function(compile: Compile) -> Step:
    """An autograd.Function of the program's own, trained."""
    return trains(Binary(), compile, torch.randn(4, 8))


@program()
def vmap_inside(compile: Compile) -> Step:
    """`torch.vmap` of a function."""

    def similar(a: Tensor, b: Tensor) -> Tensor:
        return torch.vmap(lambda x, y: (x * y).sum() / (x.norm() * y.norm()))(a, b)

    return infers(similar, compile, torch.randn(4, 8), torch.randn(4, 8))


@program()
def gradients_inside(compile: Compile) -> Step:
    """`torch.func.grad` of a loss, over parameters in a dict."""
    weights, x = {"w": torch.randn(8, 4), "b": torch.zeros(4)}, torch.randn(6, 8)

    def loss(weights: dict[str, Tensor], x: Tensor) -> Tensor:
        return (torch.tanh(x @ weights["w"] + weights["b"]) ** 2).mean()

    return infers(lambda weights, x: torch.func.grad(loss)(weights, x), compile, weights, x)


@program()
def einsum(compile: Compile) -> Step:
    """Einsum and code as einops leaves it."""

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        weights = torch.einsum("bhid,bhjd->bhij", q, k).softmax(-1)
        return torch.einsum("bhij,bhjd->bhid", weights, v).permute(0, 2, 1, 3).flatten(2)

    return infers(attend, compile, *torch.randn(3, 2, 2, 5, 8).unbind(0))


class Spectral(nn.Module):
    def __init__(self, width: int = 8, modes: int = 4) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width, width, modes, dtype=torch.cfloat) / width)
        self.modes = modes

    def forward(self, x: Tensor) -> Tensor:
        spectrum = torch.fft.rfft(x)[..., : self.modes]
        mixed = torch.einsum("bim,iom->bom", spectrum, self.weight)
        return torch.fft.irfft(mixed, n=x.shape[-1])


@program()
def fourier(compile: Compile) -> Step:
    """A layer of a Fourier neural operator: FFT and complex weights, trained."""
    return trains(Spectral(), compile, torch.randn(2, 8, 16))


class Rotary(nn.Module):
    angles: Tensor

    def __init__(self) -> None:
        super().__init__()
        angles = torch.outer(torch.arange(8.0), 1 / 10 ** torch.arange(4.0))
        self.register_buffer("angles", torch.polar(torch.ones_like(angles), angles))

    def forward(self, x: Tensor) -> Tensor:
        turned = torch.view_as_complex(x.unflatten(-1, (-1, 2))) * self.angles[: x.shape[1]]
        return torch.view_as_real(turned).flatten(-2)


@program()
def rotary(compile: Compile) -> Step:
    """Rotary embeddings by complex numbers."""
    return infers(Rotary(), compile, torch.randn(2, 6, 8))


@program()
def changed_in_place(compile: Compile) -> Step:
    """A function that changes its argument in place."""
    x = torch.randn(4, 8)

    def normalise(x: Tensor) -> Tensor:
        x -= x.mean(-1, keepdim=True)
        x[:, 0] = 1.0
        return functional.normalize(x, dim=-1)

    compiled = compile(normalise)
    return lambda: (compiled(x), x.clone())
