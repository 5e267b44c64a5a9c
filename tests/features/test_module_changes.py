"""F13: what changes in a module after it was wrapped is noticed at the next call, and nothing else is."""

import argparse
import copy
import pickle

import pytest
import torch
from tests.slow import thinned
from torch import nn

import warmstore as ws
from warmstore.features.module_changes import detector_of

X = torch.rand(4, 3)


class Config:
    def __init__(self):
        self.scale, self.shifts, self.inner = 2.0, [1.0, 2.0], argparse.Namespace(power=1)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.a = nn.Linear(3, 3)
        self.b = nn.BatchNorm1d(3)
        self.tail = nn.Sequential(nn.Identity(), nn.ReLU())
        self.register_buffer("scale", torch.ones(1))
        self.config = Config()
        self.hidden = [nn.Linear(3, 3).requires_grad_(False)]
        self.calls = 0
        self.requires_grad_(False)
        self.eval()

    def forward(self, x):
        self.calls += 1
        y = self.b(self.a(x)) * self.scale * self.config.scale + self.config.shifts[0]
        return self.hidden[0](self.tail(y)) ** self.config.inner.power


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
    "load_state_dict": (lambda m: m.load_state_dict(other_state()), "values of the tensor `module.a.weight` changed"),
    "load_state_dict assigning": (lambda m: m.load_state_dict(other_state(), assign=True), "`module.a.weight`"),
    "in place": (lambda m: m.a.weight.add_(1), "the values of the tensor `module.a.weight` changed"),
    "one element": (lambda m: m.a.bias[0].mul_(2), "`module.a.bias`"),
    "optimizer": (optimizer_step, "`module.a.weight`"),
    "through data": (lambda m: setattr(m.a.weight, "data", m.a.weight.data + 1), "`module.a.weight`"),
    "replaced parameter": (
        lambda m: setattr(m.a, "bias", nn.Parameter(torch.ones(3), requires_grad=False)),
        "`module.a.bias`",
    ),
    "deleted and replaced": (replace, "`module.a.weight`"),
    "no bias any more": (lambda m: setattr(m.a, "bias", None), "`module.a.bias` was tensor .*, is None"),
    "replaced layer": (lambda m: setattr(m, "a", nn.Linear(3, 3).requires_grad_(False)), "`module.a.weight`"),
    "another layer": (lambda m: m.tail.__setitem__(1, nn.Tanh()), "`module.tail.1` was .*ReLU.* is .*Tanh"),
    "new layer": (lambda m: m.add_module("c", nn.Linear(2, 2).requires_grad_(False)), "`module.c"),
    "buffer in place": (lambda m: m.scale.mul_(3), "`module.scale`"),
    "buffer replaced": (lambda m: setattr(m, "scale", torch.full((1,), 2.0)), "`module.scale`"),
    "running statistics": (lambda m: m.b.running_mean.add_(1), "`module.b.running_mean`"),
    "through half": (lambda m: m.half().float(), "`module.a.weight`"),
    "train mode": (lambda m: m.train(), "the train/eval mode of `module.b` was evaluation, is training"),
    "setting": (lambda m: setattr(m.config, "scale", 3.0), "`module.config.scale` was 2.0, is 3.0"),
    "setting of another type": (lambda m: setattr(m.config, "scale", 2), "`module.config.scale` was 2.0, is 2"),
    "setting in a namespace": (
        lambda m: setattr(m.config.inner, "power", 2),
        "`module.config.inner.power` was 1, is 2",
    ),
    "element of a list": (
        lambda m: m.config.shifts.__setitem__(0, 7.0),
        r"`module.config.shifts\[0\]` was 1.0, is 7.0",
    ),
    "list grown": (lambda m: m.config.shifts.append(7.0), "module.config.shifts"),
    "layer in a list": (lambda m: m.hidden[0].weight.mul_(2), r"`module.hidden\[0\].weight`"),
    "another layer in a list": (lambda m: m.hidden.__setitem__(0, nn.ReLU()), r"`module.hidden\[0\]"),
    "hook": (lambda m: m.a.register_forward_hook(lambda module, x, y: y * 2), r"module.a._forward_hooks"),
    "pre-hook": (lambda m: m.a.register_forward_pre_hook(lambda module, x: (x[0] * 2,)), "module.a._forward_pre_hooks"),
    "forward": (lambda m: setattr(m.a, "forward", lambda x: x), "`module.a.forward` is new"),
    "counter": (lambda m: setattr(m, "calls", 99), "`module.calls` was 0, is 99"),
}


@pytest.mark.parametrize("change", thinned(3, CHANGES))
def test_changes_are_noticed_and_named(tmp_path, change):
    model = Model()
    module = ws.CachedModule(model, ws.FeatureCache(tmp_path, "id"))
    first = module(X, cache_ids=range(4))
    make, said = CHANGES[change]
    make(model)
    for ids in (range(4), range(4, 8), [0, 9, 1, 8]):
        with pytest.raises(ws.StaleCache, match=said):
            module(X, cache_ids=ids)
    module.cache.close()
    with ws.FeatureCache(tmp_path, "id") as cache:
        assert len(cache) == 4
        assert torch.equal(cache.get_batch(range(4))[0], first)


def test_a_method_that_is_replaced_in_its_class(tmp_path):
    class Doubling(nn.Module):
        def forward(self, x):
            return self.times(x)

        def times(self, x):
            return x * 2

    module = ws.CachedModule(Doubling(), ws.FeatureCache(tmp_path, "id"))
    module(X, cache_ids=range(4))
    Doubling.times = lambda self, x: x * 3
    with pytest.raises(ws.StaleCache, match=r"Doubling\.times"):
        module(X, cache_ids=range(4))


def test_changed_back_is_fine(tmp_path):
    model = Model()
    module = ws.CachedModule(model, ws.FeatureCache(tmp_path, "id"))
    first = module(X, cache_ids=range(4))
    for change, back in (
        (lambda: model.scale.mul_(2), lambda: model.scale.div_(2)),
        (lambda: setattr(model.config, "scale", 5.0), lambda: setattr(model.config, "scale", 2.0)),
        (lambda: model.train(), lambda: model.eval()),
        (lambda: setattr(model, "calls", 7), lambda: setattr(model, "calls", 0)),
        (lambda: model.config.shifts.append(3.0), lambda: model.config.shifts.pop()),
    ):
        change()
        with pytest.raises(ws.StaleCache):
            module(X, cache_ids=range(4))
        back()
        assert torch.equal(module(X, cache_ids=range(4)), first)


@pytest.mark.parametrize(
    "change",
    thinned(
        4,
        [
            lambda m: m.to(torch.float64).to(torch.float32),
            lambda m: m.load_state_dict(Model().state_dict()),
            lambda m: m.a.weight.add_(0),
            lambda m: setattr(m.a, "bias", nn.Parameter(m.a.bias.clone(), requires_grad=False)),
            lambda m: setattr(m, "config", Config()),
            lambda m: setattr(m, "hidden", [copy.deepcopy(m.hidden[0])]),
            lambda m: m.tail.__setitem__(1, nn.ReLU()),
            lambda m: m.zero_grad(),
            lambda m: m.a.train(),
            lambda m: m.a.register_forward_hook(lambda module, x, y: y * 2).remove(),
        ],
    ),
)
def test_the_same_again_is_not_stale(tmp_path, change):
    model = Model()
    module = ws.CachedModule(model, ws.FeatureCache(tmp_path, "id"))
    first = module(X, cache_ids=range(4))
    change(model)
    assert torch.equal(module(X, cache_ids=range(4)), first)
    assert module.cache.stats().hits == 4


def test_many_replacements_are_each_seen():
    """Memory is handed out again: a new parameter may lie where a freed one lay, as an object and as an array."""
    model = nn.Linear(512, 512, bias=False).requires_grad_(False)
    detector = detector_of(model)
    seen = set()
    for at in range(40):
        for _ in range(1 + at % 3):
            del model.weight
            model.weight = nn.Parameter(torch.full((512, 512), float(at)), requires_grad=False)
        seen.add(detector.identity().digest)
    assert len(seen) == 40


def test_all_who_wrap_a_module_share_its_detector(tmp_path):
    model = Model()
    cache = ws.FeatureCache(tmp_path, "id")
    one, other = ws.CachedModule(model, cache), ws.CachedModule(model, cache)
    one(X, cache_ids=range(4))
    other(X, cache_ids=range(4, 8))
    one(X, cache_ids=range(8, 12))
    assert other(X, cache_ids=range(4)).shape == (4, 3)
    assert cache.stats().hits == 4
    assert detector_of(model) is detector_of(model)


def test_who_leaves_out_more_calls_it_too(tmp_path):
    """A call is our own whoever of us makes it."""
    model = Model()
    one = ws.CachedModule(model, ws.FeatureCache(tmp_path, "id"))
    other = ws.CachedModule(model, ws.FeatureCache(tmp_path, "other"), ignore=["module.config"])
    for at in range(0, 12, 4):
        one(X, cache_ids=range(at, at + 4))
        other(X, cache_ids=range(at, at + 4))
    model.config.scale = 9.0
    other(X, cache_ids=range(4))
    with pytest.raises(ws.StaleCache):
        one(X, cache_ids=range(4))


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module))])
def test_copies_watch_their_own_module(tmp_path, copied):
    model = Model()
    module = ws.CachedModule(model, ws.FeatureCache(tmp_path, "id"))
    module(X, cache_ids=range(4))
    module.cache.flush()
    twin = copied(module)
    assert twin.module is not model
    assert twin.module.calls == 1
    twin(X, cache_ids=range(4))
    twin(X, cache_ids=range(4, 8))
    assert twin.cache.stats().misses == (8 if twin.cache is module.cache else 4)
    twin.module.scale.add_(1)
    with pytest.raises(ws.StaleCache):
        twin(X, cache_ids=range(4))
    module(X, cache_ids=range(4))
    twin.cache.close()
    module.cache.close()


def test_weights_made_in_inference_mode(tmp_path):
    with torch.inference_mode():
        module = ws.CachedModule(nn.Linear(3, 2).requires_grad_(False), ws.FeatureCache(tmp_path, "id"))
        first = module(X, cache_ids=range(4))
    assert torch.equal(module(X, cache_ids=range(4)), first)


class TestWithoutATrace:
    """Writes that leave no trace are found by hashing in turn, within a time that `stats` gives."""

    WRITES = (
        lambda m: m.a.weight.data.add_(1),
        lambda m: m.a.weight.numpy().__setitem__((0, 0), 9.0),
        lambda m: m.hidden[0].bias.data.zero_(),
    )

    @pytest.mark.parametrize("write", WRITES)
    def test_is_found(self, tmp_path, write):
        class Clock:
            now = 0.0

            def __call__(self):
                return self.now

        model, clock = Model(), Clock()
        detector = detector_of(model, clock=clock)
        module = ws.CachedModule(model, ws.FeatureCache(tmp_path, "id"))
        module(X, cache_ids=range(4))
        for _ in range(20):
            clock.now += 10.0
            module(X, cache_ids=range(4))  # nothing is found where nothing is
        write(model)
        found = False
        for _ in range(20):
            clock.now += 10.0
            try:
                module(X, cache_ids=range(4))
            except ws.StaleCache as error:
                found = "the values of the tensor" in str(error)
                break
        assert found
        assert detector.window > 0

    def test_the_window_is_told(self, tmp_path):
        cache = ws.FeatureCache(tmp_path, "id")
        assert cache.stats().window is None
        module = ws.CachedModule(Model(), cache)
        assert module.cache.stats().window > 0
        assert "window=" in str(cache.stats())
