"""Backbones by name: a small ResNet, a transformer, an LSTM and a mixer."""

from dataclasses import asdict, dataclass, field
from functools import wraps

import torch
from torch import nn

from . import layers
from .layers import Activation, Frozen, Residual, SelfAttention, initialize

_REGISTRY = {}
PIXEL_MEAN, PIXEL_STD = 0.4, 0.25


@dataclass
class Config:
    width: int = 8
    depth: int = 2
    heads: int = 2
    classes: int = 0
    pool: str = "mean"
    activation: Activation = Activation.GELU
    strides: list = field(default_factory=lambda: [1, 2])


def register(name):
    """Class decorator: makes a backbone known under `name`."""

    def add(cls):
        _REGISTRY[name] = cls
        cls.name = name
        return cls

    return add


def create(name, **options):
    if name not in _REGISTRY:
        raise KeyError(f"no backbone {name!r}; known are {sorted(_REGISTRY)}")
    model = _REGISTRY[name](Config(**options))
    model.apply(initialize)
    return model.eval()


def normalized(forward):
    """Decorator of a forward: pixels are normalised first."""

    @wraps(forward)
    def wrapper(self, x):
        return forward(self, (x - PIXEL_MEAN) / PIXEL_STD)

    return wrapper


class WithHead:
    """Mixin: an optional classifier after the features."""

    def add_head(self, width):
        self.head = nn.Linear(width, self.config.classes) if self.config.classes else None

    def classify(self, features):
        return features if self.head is None else self.head(features)


@register("resnet")
class ResNet(WithHead, nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.stem = nn.Conv2d(3, config.width, 3, padding=1)
        channels, blocks = config.width, []
        for stride in config.strides:
            blocks.append(Residual(channels, channels * stride, stride, config.activation))
            channels *= stride
        self.blocks = nn.Sequential(*blocks)
        self.add_head(channels)

    def pool(self, x):
        pools = {"mean": lambda y: y.mean((-2, -1)), "max": lambda y: y.amax((-2, -1)), "gem": layers.generalized_mean}
        return pools[self.config.pool](x)

    @normalized
    def forward(self, x):
        return self.classify(self.pool(self.blocks(self.stem(x))))


@register("frozen_resnet")
class FrozenResNet(Frozen, ResNet):
    """Always in evaluation."""


class Block(nn.Module):
    """Attention and a feed-forward layer, normalised before or after."""

    def __init__(self, config, causal=False, first=True):
        super().__init__()
        self.attention = SelfAttention(config.width, config.heads, causal)
        self.norms = nn.ModuleList(nn.LayerNorm(config.width) for _ in range(2))
        self.feed = nn.Sequential(
            nn.Linear(config.width, 2 * config.width),
            config.activation.build(),
            nn.Linear(2 * config.width, config.width),
        )
        self.first = first

    def forward(self, x):
        for norm, inner in zip(self.norms, (self.attention, self.feed), strict=True):
            x = x + inner(norm(x)) if self.first else norm(x + inner(x))
        return x


@register("transformer")
class Transformer(WithHead, nn.Module):
    vocabulary = 16
    longest = 12

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(self.vocabulary, config.width)
        self.register_buffer("positions", layers.sinusoids(self.longest, config.width), persistent=False)
        self.blocks = nn.ModuleList(Block(config, causal=at == 0) for at in range(config.depth))
        self.add_head(config.width)

    @property
    def scale(self):
        return self.config.width**0.5

    def embed(self, ids):
        return self.embedding(ids) * self.scale + self.positions[: ids.shape[1]]

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        features = x[:, 0] if self.config.pool == "first" else x.mean(1)
        return {"features": features, "logits": self.classify(features)}


@register("lstm")
class Recurrent(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(16, config.width, padding_idx=0)
        self.lstm = nn.LSTM(config.width, config.width, config.depth, batch_first=True, bidirectional=True)

    def forward(self, ids):
        lengths = (ids != self.embedding.padding_idx).sum(1)
        states, _ = self.lstm(self.embedding(ids))
        last = states[torch.arange(len(ids)), lengths - 1]
        return torch.cat([last, states.amax(1)], dim=-1)


@register("mixer")
class Mixer(nn.Module):
    """Blocks in a plain list and a pooling that is a closure: neither is a child module."""

    def __init__(self, config):
        super().__init__()
        self.options = asdict(config)
        self.tokens = [nn.Linear(6, 6) for _ in range(config.depth)]
        self.channels = {"in": nn.Linear(4, config.width), "out": nn.Linear(config.width, 4)}
        for layer in (*self.tokens, *self.channels.values()):
            initialize(layer)
        self.reduce = self.pooling(config.pool)

    @staticmethod
    def pooling(kind, axis=1):
        return lambda x: x.mean(axis) if kind == "mean" else x.amax(axis)

    def forward(self, x):
        for mix in self.tokens:
            x = x + mix(x.transpose(1, 2)).transpose(1, 2)
        hidden = self.channels["in"](x).relu()
        return self.reduce(self.channels["out"](hidden)) / self.options["width"]


class Captured(nn.Module):
    """What a layer inside another model gives, caught by a hook."""

    def __init__(self, model, layer):
        super().__init__()
        self.model = model
        self.caught = {}
        model.get_submodule(layer).register_forward_hook(self.catch)

    def catch(self, module, inputs, output):
        self.caught["last"] = output.abs()

    def forward(self, x):
        self.model(x)
        return self.caught.pop("last")


class Ensemble(nn.Module):
    """Weighted mean of models that it holds as a plain tuple of functions."""

    def __init__(self, *members, weights=None):
        super().__init__()
        self.members = tuple(member.forward for member in members)
        self.weights = weights or [1.0] * len(members)

    def forward(self, x):
        outputs = [weight * member(x) for weight, member in zip(self.weights, self.members, strict=True)]
        return sum(outputs) / sum(self.weights)


def entries():
    resnet = create("resnet", width=4, activation=Activation.LEAKY)
    with torch.no_grad():
        resnet.blocks[0].norm.running_mean.fill_(0.05)
    return {
        "resnet": resnet,
        "resnet_classes": create("frozen_resnet", width=4, classes=3, pool="gem", strides=[2]),
        "resnet_max": create("resnet", width=4, pool="max").forward,
        "transformer": create("transformer", depth=2, classes=2),
        "transformer_first": create("transformer", width=4, depth=1, pool="first", activation=Activation.RELU),
        "lstm": create("lstm", width=4),
        "mixer": create("mixer", width=4),
        "captured": Captured(create("resnet", width=4), "blocks.1.first"),
        "ensemble": Ensemble(create("resnet", width=4), create("resnet", width=4, pool="max"), weights=[0.25, 0.75]),
    }


def examples():
    image = torch.linspace(0, 1, 2 * 3 * 6 * 6).view(2, 3, 6, 6).sin()
    ids = torch.tensor([[3, 4, 5, 6, 0], [7, 8, 1, 2, 15]])
    sequence = torch.linspace(-1, 1, 48).view(2, 6, 4)
    return {"*": (image,), "transformer": (ids,), "transformer_first": (ids,), "lstm": (ids,), "mixer": (sequence,)}
