"""F13: weights that change after wrapping are noticed, and only those."""

import copy
import pickle

import pytest
import torch
from torch import nn

import warmstore as ws
from warmstore.features.watch import Watch


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.a = nn.Linear(3, 3)
        self.b = nn.BatchNorm1d(3)
        self.register_buffer("scale", torch.ones(1))
        self.calls = 0
        self.requires_grad_(False)
        self.eval()

    def forward(self, x):
        self.calls += 1
        return self.b(self.a(x)) * self.scale


def optimizer_step(model):
    weight = model.a.weight.requires_grad_(True)
    model.a(torch.ones(1, 3)).sum().backward()
    torch.optim.SGD([weight], lr=0.1).step()
    weight.requires_grad_(False)


def replace(model):
    # The new one may get the place in memory and the id of the old one, or of one before it.
    shape = model.a.weight.shape
    del model.a.weight
    model.a.weight = nn.Parameter(torch.rand(shape), requires_grad=False)


def other_state():
    state = Model().state_dict()
    state["a.weight"] = state["a.weight"] + 1
    return state


CHANGES = {
    "load_state_dict": lambda m: m.load_state_dict(other_state()),
    "load_state_dict assigning": lambda m: m.load_state_dict(other_state(), assign=True),
    "in place": lambda m: m.a.weight.add_(1),
    "one element": lambda m: m.a.bias[0].mul_(2),
    "optimizer": optimizer_step,
    "replaced parameter": lambda m: setattr(m.a, "bias", nn.Parameter(torch.ones(3), requires_grad=False)),
    "deleted and replaced": replace,
    "no bias any more": lambda m: setattr(m.a, "bias", None),
    "replaced layer": lambda m: setattr(m, "a", nn.Linear(3, 3).requires_grad_(False)),
    "new layer": lambda m: m.add_module("c", nn.Linear(2, 2).requires_grad_(False)),
    "buffer in place": lambda m: m.scale.mul_(3),
    "buffer replaced": lambda m: setattr(m, "scale", torch.full((1,), 2.0)),
    "running statistics": lambda m: m.b.running_mean.add_(1),
    "through half": lambda m: m.half().float(),
    "train mode": lambda m: m.train(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_new_weights_old_features(tmp_path, change):
    model = Model()
    module = ws.CachedModule(model, ws.FeatureCache(tmp_path, "id"))
    x = torch.rand(4, 3)
    first = module(x, cache_ids=range(4))
    CHANGES[change](model)
    for ids in (range(4), range(4, 8), [0, 9, 1, 8]):
        with pytest.raises(ws.StaleCache, match=r"weights|mode"):
            module(x, cache_ids=ids)
    module.cache.close()
    with ws.FeatureCache(tmp_path, "id") as cache:
        assert len(cache) == 4
        assert torch.equal(cache.get_batch(range(4))[0], first)


def test_changed_back_is_fine(tmp_path):
    model = Model()
    module = ws.CachedModule(model, ws.FeatureCache(tmp_path, "id"))
    x = torch.rand(4, 3)
    first = module(x, cache_ids=range(4))
    model.scale.mul_(2)
    with pytest.raises(ws.StaleCache):
        module(x, cache_ids=range(4))
    model.scale.div_(2)
    assert torch.equal(module(x, cache_ids=range(4)), first)


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.to(torch.float64).to(torch.float32),
        lambda m: m.load_state_dict(Model().state_dict()),
        lambda m: m.a.weight.add_(0),
        lambda m: setattr(m.a, "bias", nn.Parameter(m.a.bias.clone(), requires_grad=False)),
        lambda m: setattr(m, "calls", 99),
        lambda m: m.zero_grad(),
        lambda m: m.a.train(),
    ],
)
def test_same_weights_are_not_stale(tmp_path, change):
    model = Model()
    module = ws.CachedModule(model, ws.FeatureCache(tmp_path, "id"))
    x = torch.rand(4, 3)
    first = module(x, cache_ids=range(4))
    change(model)
    assert torch.equal(module(x, cache_ids=range(4)), first)
    assert module.cache.stats().hits == 4


def test_weights_are_hashed_once_while_nothing_moves():
    watch = Watch(Model())
    assert watch.version() == watch.version()
    before = watch.fingerprint()
    assert watch.fingerprint() == before


def test_many_replacements_are_each_seen():
    """Memory is handed out again: a new parameter may lie where a freed one lay, as an object and as an array."""
    model = nn.Linear(512, 512, bias=False).requires_grad_(False)
    watch = Watch(model)
    seen = set()
    for at in range(40):
        for _ in range(1 + at % 3):
            del model.weight
            model.weight = nn.Parameter(torch.full((512, 512), float(at)), requires_grad=False)
        watch.version()
        seen.add(watch.fingerprint()["weights"])
    assert len(seen) == 40


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda watch: pickle.loads(pickle.dumps(watch))])
def test_copies_watch_their_own_module(copied):
    watch = Watch(Model())
    watch.version()
    before = watch.fingerprint()
    twin = copied(watch)
    twin.version()
    assert twin.fingerprint() == before
    twin._module.scale.add_(1)
    twin.version()
    watch.version()
    assert twin.fingerprint()["weights"] != before["weights"]
    assert watch.fingerprint() == before


def test_weights_made_in_inference_mode(tmp_path):
    with torch.inference_mode():
        module = ws.CachedModule(nn.Linear(2, 2).requires_grad_(False), ws.FeatureCache(tmp_path, "id"))
        x = torch.rand(3, 2)
        first = module(x, cache_ids=[1, 2, 3])
    assert torch.equal(module(x, cache_ids=[1, 2, 3]), first)
