"""The train/eval mode of a module counts where any code that the module runs may read it, and nowhere else."""

import functools
import operator
import random

import numpy as np
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


@pytest.mark.parametrize("kind", [nn.BatchNorm1d, nn.SyncBatchNorm])
def test_statistics_of_the_batch_in_evaluation(tmp_path, kind):
    module = nn.Sequential(nn.Identity(), kind(3, track_running_stats=False)).eval().requires_grad_(False)
    cache = ws.FeatureCache(tmp_path, "id")
    with pytest.raises(ws.NotStateless, match=rf"has 1, a {kind.__name__} without running statistics"):
        ws.CachedModule(module, cache)
    ws.CachedModule(module, cache, enforce_stateless=False)
    ws.CachedModule(nn.InstanceNorm1d(3).eval(), cache)  # by the statistics of each sample
    ws.CachedModule(nn.BatchNorm1d(3).eval().requires_grad_(False), cache)


class Drawing(nn.Module):
    """Draws in evaluation; the output depends on it if `scale` is not 0."""

    def __init__(self, draw, scale):
        super().__init__()
        self.draw, self.scale, self.calls = draw, scale, 0

    def forward(self, x):
        self.calls += 1
        drawn = torch.as_tensor(self.draw(), dtype=x.dtype)
        return {"x": x, "sample": x + self.scale * drawn}


DRAWS = {
    "torch": functools.partial(torch.rand, ()),
    "dropout": lambda: nn.functional.dropout(torch.arange(200.0), 0.5).sum(),  # training=True is its default
    "numpy": lambda: np.random.rand(),
    "python": lambda: random.random(),
}


@pytest.mark.parametrize("draw", DRAWS)
def test_random_in_evaluation(tmp_path, draw):
    for seed in (torch.manual_seed, np.random.seed, random.seed):
        seed(0)
    with ws.FeatureCache(tmp_path, "id") as cache:
        module = ws.CachedModule(Drawing(DRAWS[draw], 1.0).eval(), cache)
        for _ in range(2):
            with pytest.raises(ws.NotStateless, match=r"draws from a default generator .* sample differs when"):
                module(X, cache_ids=range(4))
        assert len(cache) == 0
        module = ws.CachedModule(module.module, cache, enforce_stateless=False)
        first = module(X, cache_ids=range(4))["sample"]
        assert torch.equal(module(X, cache_ids=range(4))["sample"], first)


@pytest.mark.parametrize("draw", DRAWS)
def test_draws_that_no_output_depends_on(tmp_path, draw):
    """Models with LayerDrop draw in evaluation, too."""
    with ws.FeatureCache(tmp_path, "id") as cache:
        module = ws.CachedModule(Drawing(DRAWS[draw], 0.0).eval(), cache)
        for first in range(0, 12, 4):
            module(X + first, cache_ids=range(first, first + 4))
        assert module.module.calls == 4  # the first batch was computed again, to see it
        assert len(cache) == 12


def test_a_second_look_leaves_the_random_numbers_of_the_program_alone(tmp_path):
    torch.manual_seed(0)
    expected = torch.rand(2)[1]
    torch.manual_seed(0)
    with ws.FeatureCache(tmp_path, "id") as cache:
        ws.CachedModule(Drawing(DRAWS["torch"], 0.0).eval(), cache)(X, cache_ids=range(4))
    assert torch.rand(()) == expected
