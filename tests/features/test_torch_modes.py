"""Inside compiled models, under autocast, in channels-last, on the meta device."""

import threading

import pytest
import torch
from tests.slow import thinned
from torch import nn, overrides
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses import fake_tensor
from torch.utils import _python_dispatch, flop_counter

import warmstore as ws


class Parent(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.features = features

    def forward(self, x, ids):
        return self.features(x * 1, cache_ids=ids).relu() + 1


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("ids", thinned(3, ["list", "tensor", "strings"]))
def test_a_compiled_model_breaks_its_graph_once_and_is_compiled_once(tmp_path, linear, ids):
    module = ws.CachedModule(linear, ws.FeatureCache(tmp_path, "id"))
    counter = CompileCounterWithBackend("aot_eager")
    model = torch.compile(Parent(module), backend=counter)
    x = torch.rand(4, 3)
    expected = linear(x).relu() + 1
    kinds = {"list": lambda first: [*range(first, first + 4)], "tensor": lambda first: torch.arange(first, first + 4)}
    make = kinds.get(ids, lambda first: [f"s{at}" for at in range(first, first + 4)])
    frames = []
    for first in (0, 2, 0, 100):
        out = model(x, make(first))
        assert torch.equal(out, expected) or first == 2
        frames.append(counter.frame_count)
    # One graph before the cached module and one after it; nothing is compiled again for other ids, hits or misses.
    assert frames[0] == 2
    assert frames[1:] == [frames[1]] * 3
    assert module.cache.stats().hits > 0


def test_a_compiled_module_inside(tmp_path, linear):
    """The wrapped module may be compiled; its cache is that of the plain one."""
    x = torch.rand(4, 3)
    with ws.FeatureCache(tmp_path, "id") as cache:
        first = ws.CachedModule(linear, cache)(x, cache_ids=range(4))
    with ws.FeatureCache(tmp_path, "id") as cache:
        compiled = ws.CachedModule(torch.compile(linear, backend="aot_eager"), cache)
        assert torch.equal(compiled(x, cache_ids=range(4)), first)
        compiled(torch.rand(4, 3), cache_ids=range(4, 8))
        assert cache.stats().hits == 4
    with ws.FeatureCache(tmp_path, "id") as cache:  # what it was compiled to is no patch of torch's
        ws.CachedModule(linear, cache)(torch.rand(4, 3), cache_ids=range(8, 12))


@pytest.mark.parametrize("trains", thinned(2, [True, False]))
def test_layers_of_torch_that_are_compiled_beside_it(trains, tmp_path, linear):
    """They are functions of torch's, so Dynamo puts what it makes of them into torch's own modules."""
    x = torch.rand(4, 3)
    with ws.FeatureCache(tmp_path, "id") as cache:
        first = ws.CachedModule(linear, cache)(x, cache_ids=range(4))
    head = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1))
    with torch.set_grad_enabled(trains):
        out = torch.compile(head, backend="aot_eager")(first)
    if trains:
        out.sum().backward()
    with ws.FeatureCache(tmp_path, "id") as cache:
        features = ws.CachedModule(linear, cache)  # looks for changes at once, later calls look every second or so
        assert torch.equal(features(torch.zeros(4, 3), cache_ids=range(4)), first)
        features(x, cache_ids=range(4, 8))


def test_a_module_that_lightning_has_compiled(tmp_path, linear):
    """Where Lightning is imported, torch.compile keeps its arguments in the module that is compiled."""
    x = torch.rand(4, 3)
    with ws.FeatureCache(tmp_path, "id") as cache:
        first = ws.CachedModule(linear, cache)(x, cache_ids=range(4))
    compiled = torch.compile(linear, backend="aot_eager")
    compiled._compile_kwargs = {"backend": "aot_eager"}
    assert linear._compile_kwargs
    with ws.FeatureCache(tmp_path, "id") as cache:
        assert torch.equal(ws.CachedModule(compiled, cache)(torch.zeros(4, 3), cache_ids=range(4)), first)


def test_a_compiled_model_trains_its_head(tmp_path, linear):
    head = nn.Linear(2, 1)
    features = ws.CachedModule(linear, ws.FeatureCache(tmp_path, "id"))
    step = torch.compile(lambda x, ids: head(features(x, cache_ids=ids)).sum(), backend="aot_eager")
    for _ in range(2):
        step(torch.rand(4, 3), [0, 1, 2, 3]).backward()
    assert head.weight.grad is not None


def test_autocast_hit_equals_miss(tmp_path, linear):
    x = torch.rand(6, 3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected = linear(x)
    for _ in range(2):
        with ws.FeatureCache(tmp_path, "id") as cache, torch.autocast("cpu", dtype=torch.bfloat16):
            module = ws.CachedModule(linear, cache)
            module(x[:2], cache_ids=[0, 1])
            out = module(x, cache_ids=range(6))
            assert out.dtype == torch.bfloat16
            assert torch.equal(out, expected)


class TestChannelsLast:
    @pytest.fixture
    def conv(self):
        torch.manual_seed(0)
        return nn.Conv2d(3, 5, 3).requires_grad_(False).eval()

    def test_misses_hits_and_both(self, tmp_path, conv):
        x = torch.rand(6, 3, 8, 8).to(memory_format=torch.channels_last)
        module = ws.CachedModule(conv.to(memory_format=torch.channels_last), ws.FeatureCache(tmp_path, "id"))
        expected = conv(x)
        for ids in ([0, 1], range(6), range(6)):
            torch.testing.assert_close(module(x[: len(ids)], cache_ids=ids), expected[: len(ids)])
        module.cache.flush()
        torch.testing.assert_close(module(x, cache_ids=range(6)), expected)
        assert module.cache.stats().misses == 6

    def test_the_module_meets_what_it_was_given(self, cached):
        """Misses keep the memory format of the batch, which decides what kernels run."""
        seen = []

        def function(x):
            seen.append(x.is_contiguous(memory_format=torch.channels_last))
            return x.sum((1, 2, 3))

        module = cached(function)
        x = torch.rand(6, 3, 8, 8).to(memory_format=torch.channels_last)
        module(x[:2], cache_ids=[0, 1])
        module(x, cache_ids=range(6))
        assert seen == [True, True]


class TestModesThatReplaceOperators:
    @pytest.fixture(params=[overrides.TorchFunctionMode, _python_dispatch.TorchDispatchMode])
    def scaled(self, request):
        class Scaled(request.param):
            def __init__(self, by):
                super().__init__()
                self.by = by

            def change(self, function, types, args=(), kwargs=None):
                found = function(*args, **(kwargs or {}))
                return found * self.by if "abs" in str(function) else found

            __torch_function__ = __torch_dispatch__ = change

        return Scaled

    def test_they_count(self, cached, scaled):
        module, x = cached(torch.abs, versions="new"), torch.ones(2)
        for _ in range(2):
            assert module(x, cache_ids=[0, 1]).tolist() == [1, 1]
            for by in (2.0, 3.0):
                with scaled(by):
                    assert module(x, cache_ids=[0, 1]).tolist() == [by, by]
        with flop_counter.FlopCounterMode(display=False), torch.device("cpu"):
            assert module(x, cache_ids=[0, 1]).tolist() == [1, 1]
        assert module.module.rows == [2, 2, 2]

    def test_they_count_while_another_thread_computes(self, cached, scaled):
        began, done, x = threading.Event(), threading.Event(), torch.ones(2)

        def function(x):
            if x[0] == 5:
                began.set()
                done.wait(60)
            return torch.abs(x)

        module = cached(function, versions="new")
        module(x, cache_ids=[0, 1])
        other = threading.Thread(target=lambda: module(x * 5, cache_ids=[5, 6]))
        other.start()
        assert began.wait(60)
        for by in (2.0, 3.0):
            with scaled(by):
                assert module(x, cache_ids=[0, 1]).tolist() == [by, by]
        done.set()
        other.join()


class TestMeta:
    """Meta tensors have shapes and no values: a call of them must leave the cache alone."""

    def test_shapes_go_through(self, tmp_path, linear):
        module = ws.CachedModule(linear.to("meta"), ws.FeatureCache(tmp_path, "id"))
        for _ in range(2):
            out = module(torch.rand(4, 3, device="meta"), cache_ids=range(4))
            assert (out.shape, out.device.type) == ((4, 2), "meta")
        module.cache.close()
        assert not list(tmp_path.iterdir())

    @pytest.mark.parametrize("calls", [0, 2])
    def test_an_exported_module_computes_what_the_wrapped_one_does(self, tmp_path, linear, calls):
        module, x, ids = ws.CachedModule(linear, ws.FeatureCache(tmp_path, "id")), torch.rand(4, 3), list(range(4))
        for _ in range(calls):
            module(x, cache_ids=ids)
        exported = torch.export.export(module, (x,), {"cache_ids": ids}, strict=False).module()
        torch.testing.assert_close(exported(x, cache_ids=ids), linear(x))
        with fake_tensor.FakeTensorMode(allow_non_fake_inputs=True) as mode:
            assert module(mode.from_tensor(x), cache_ids=ids).shape == (4, 2)
        torch.testing.assert_close(module(x, cache_ids=ids), linear(x))
        assert module.cache.stats().misses == 4

    def test_nothing_is_kept_beside_real_values(self, cached):
        module = cached()
        module(torch.ones(2), cache_ids=[1, 2])
        assert module(torch.ones(2, device="meta"), cache_ids=[2, 3]).device.type == "meta"
        assert module(torch.ones(2), cache_ids=[2, 3]).tolist() == [2, 2]
        assert len(module.cache) == 3
