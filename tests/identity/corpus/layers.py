"""Layers that the backbones share: blocks, attention, and how activations are chosen."""

import math
from enum import Enum
from functools import partial, singledispatch

import torch
from torch import nn
from torch.nn import functional

NEGATIVE_SLOPE = 0.1


class Activation(Enum):
    RELU = "relu"
    GELU = "gelu"
    LEAKY = "leaky"

    def build(self):
        return _ACTIVATIONS[self]()


_ACTIVATIONS = {
    Activation.RELU: nn.ReLU,
    Activation.GELU: partial(nn.GELU, approximate="tanh"),
    Activation.LEAKY: partial(nn.LeakyReLU, NEGATIVE_SLOPE),
}


@singledispatch
def initialize(layer):
    """Set the parameters of a layer; layers of other types keep theirs."""


@initialize.register
def _(layer: nn.Conv2d):
    nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")


@initialize.register
def _(layer: nn.Linear):
    nn.init.trunc_normal_(layer.weight, std=0.2)
    nn.init.constant_(layer.bias, 0.01)


class Scaled:
    """Mixin: scales what the layer gives."""

    scale = 1.0

    def forward(self, *inputs):
        return super().forward(*inputs) * self.scale


class ScaledLinear(Scaled, nn.Linear):
    scale = 0.5


class Frozen:
    """Mixin: a module that stays in evaluation."""

    def train(self, mode=True):
        return super().train(False)


class ChannelNorm(nn.Module):
    """Layer normalisation over channels of (batch, channels, ...)."""

    epsilon = 1e-5

    def __init__(self, channels):
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, channels))
        self.register_buffer("shift", torch.full((channels,), 0.1))

    def forward(self, x):
        centered = x - x.mean(1, keepdim=True)
        normal = centered / (centered.var(1, keepdim=True, unbiased=False) + self.epsilon).sqrt()
        shape = (1, -1) + (1,) * (x.dim() - 2)
        return normal * self.weight.view(shape) + self.shift.view(shape)


class Residual(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, inputs, outputs, stride=1, activation=Activation.RELU):
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(outputs)
        self.activation = activation.build()
        self.shortcut = None
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Conv2d(inputs, outputs, 1, stride=stride)

    def forward(self, x):
        skipped = x if self.shortcut is None else self.shortcut(x)
        inner = self.activation(self.norm(self.first(x)))
        return self.activation(self.second(inner) + skipped)


def attention(queries, keys, values, causal=False):
    """Scaled dot-product attention over (batch, heads, length, channels)."""
    scores = queries @ keys.transpose(-2, -1) / math.sqrt(queries.shape[-1])
    if causal:
        length = scores.shape[-1]
        future = torch.ones(length, length, dtype=torch.bool).triu(1)
        scores = scores.masked_fill(future, float("-inf"))
    return scores.softmax(-1) @ values


class SelfAttention(nn.Module):
    def __init__(self, width, heads, causal):
        super().__init__()
        self.heads = heads
        self.causal = causal
        self.inner = nn.Linear(width, 3 * width)
        self.outer = nn.Linear(width, width)

    def _split(self, x):
        batch, length, width = x.shape
        return x.view(batch, length, self.heads, width // self.heads).transpose(1, 2)

    def forward(self, x):
        queries, keys, values = (self._split(part) for part in self.inner(x).chunk(3, dim=-1))
        mixed = attention(queries, keys, values, self.causal)
        return self.outer(mixed.transpose(1, 2).flatten(2))


def sinusoids(length, width, base=100.0):
    """Positional encodings, (length, width)."""
    rates = base ** (-torch.arange(0, width, 2) / width)
    angles = torch.arange(length)[:, None] * rates
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)


def generalized_mean(x, power=3.0, floor=1e-6):
    """GeM pooling over the last two dimensions."""
    return functional.avg_pool2d(x.clamp(min=floor).pow(power), x.shape[-2:]).pow(1 / power).flatten(1)


def entries():
    return {
        "scaled_linear": ScaledLinear(4, 3),
        "channel_norm": ChannelNorm(4),
        "residual": Residual(4, 6, stride=2, activation=Activation.LEAKY).eval(),
        "self_attention": SelfAttention(4, 2, causal=True),
        "attention": partial(attention, causal=True),
        "sinusoids": partial(sinusoids, base=50.0),
        "generalized_mean": generalized_mean,
    }


def examples():
    values = torch.linspace(-1, 1, 96)
    sequence = values.sin().view(2, 12, 4)
    image = values.view(1, 4, 4, 6)
    heads = values.view(1, 2, 12, 4)
    return {
        "scaled_linear": (sequence,),
        "channel_norm": (image,),
        "residual": (image,),
        "self_attention": (sequence,),
        "attention": (heads, heads.flip(2), heads.cos()),
        "sinusoids": (5, 6),
        "generalized_mean": (image,),
    }
