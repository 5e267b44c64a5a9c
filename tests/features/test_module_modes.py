"""The train/eval mode of a module counts where any code that the module runs may read it, and nowhere else."""

import functools
import operator

import pytest
import torch
from torch import nn

import warmstore as ws

X = torch.ones(4, 3)
MODE = operator.attrgetter("training")


def doubled(module, x):
    return x * 2 if module.training else x


def wrapped(function):
    @functools.wraps(function)
    def wrapper(*args):
        return function(*args)

    return wrapper


class Decorated(nn.Module):
    @torch.no_grad()
    def forward(self, x):
        return x * 2 if self.training else x


class Wrapped(nn.Module):
    @wrapped
    def forward(self, x):
        return x * 2 if self.training else x


class WithProperty(nn.Module):
    @property
    def scale(self):
        return 2 if self.training else 1

    def forward(self, x):
        return x * self.scale


class WithHelper(nn.Module):
    def forward(self, x):
        return doubled(self, x)


class ByName(nn.Module):
    def forward(self, x):
        return x * 2 if getattr(self, "training") else x  # noqa: B009


class ByGetter(nn.Module):
    def forward(self, x):
        return x * 2 if MODE(self) else x


class Mixin:
    def forward(self, x):
        return x * 2 if self.training else x


class Mixed(Mixin, nn.Module):
    pass


class OfChild(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Identity()

    def forward(self, x):
        return x * 2 if self.inner.training else x


class OfSet(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Identity()
        self.parts = {self.inner}

    def forward(self, x):
        return x * 2 if any(part.training for part in self.parts) else x


class InClosure(nn.Module):
    def forward(self, x):
        return torch.stack([row * 2 if self.training else row for row in x])


def patched():
    module = nn.Identity()
    module.forward = functools.partial(doubled, module)
    return module


def hooked():
    module = nn.Identity()
    module.register_forward_hook(lambda module, args, x: x * 2 if module.training else x)
    return module


READERS = [Decorated, Wrapped, WithProperty, WithHelper, ByName, ByGetter, Mixed, InClosure, patched, hooked]


@pytest.mark.parametrize("make", READERS, ids=lambda make: make.__name__)
def test_code_that_reads_the_mode(tmp_path, make):
    model = make().eval()
    module = ws.CachedModule(model, ws.FeatureCache(tmp_path, "id"))
    assert torch.equal(module(X, cache_ids=range(4)), X)
    model.train()
    with pytest.raises(ws.StaleCache, match="the train/eval mode of `module"):
        module(X, cache_ids=range(4))
    model.eval()
    assert torch.equal(module(X, cache_ids=range(4)), X)


@pytest.mark.parametrize("kind", [OfChild, OfSet])
def test_code_that_reads_the_mode_of_another_module(tmp_path, kind):
    model = kind().eval()
    module = ws.CachedModule(model, ws.FeatureCache(tmp_path, "id"))
    module(X, cache_ids=range(4))
    model.inner.train()
    with pytest.raises(ws.StaleCache, match="the train/eval mode of `module"):
        module(X, cache_ids=range(4))


class Silent(nn.Module):
    """Sets the mode and names it, and reads it nowhere."""

    def __init__(self):
        super().__init__()
        self.training = False
        self.inner = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.0)).requires_grad_(False)

    def train(self, mode=True):
        self.training = mode
        self.inner.train(mode)
        return self

    def extra_repr(self):
        return f"training={self.training}"

    @torch.no_grad()
    def forward(self, x):
        return nn.functional.dropout(self.inner(x), training=False)


class Reading(Silent):
    def forward(self, x):
        return self.inner(x) * (2 if self.training else 1)


def test_code_that_does_not(tmp_path):
    model = Silent()
    module = ws.CachedModule(model, ws.FeatureCache(tmp_path, "id"))
    first = module(X, cache_ids=range(4))
    model.train()
    assert torch.equal(module(X, cache_ids=range(4)), first)
    assert module.cache.stats().hits == 4


def test_a_method_reads_the_mode_of_its_own_module(tmp_path):
    model = Reading()
    module = ws.CachedModule(model, ws.FeatureCache(tmp_path, "id"))
    first = module(X, cache_ids=range(4))
    model.inner.train()
    assert torch.equal(module(X, cache_ids=range(4)), first)


class Dropping(nn.Module):
    @torch.no_grad()
    def forward(self, x):
        return nn.functional.dropout(x, 0.5, self.training)


def dropped(module, x):
    return nn.functional.dropout(x, 0.5, module.training)


class DroppingInHelper(nn.Module):
    def forward(self, x):
        return dropped(self, x)


@pytest.mark.parametrize("kind", [Dropping, DroppingInHelper])
def test_random_in_training_mode(tmp_path, kind):
    with pytest.raises(ws.NotStateless, match="ropp"):
        ws.CachedModule(kind(), ws.FeatureCache(tmp_path, "id"))
    module = ws.CachedModule(kind().eval(), ws.FeatureCache(tmp_path, "id"))
    assert torch.equal(module(X, cache_ids=range(4)), X)
