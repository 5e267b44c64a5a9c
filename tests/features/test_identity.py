"""What a cache stands for: modules whose outputs differ never share one, and those that compute the same always do.

Seen through CachedModule. What counts of functions, classes and values in general is in tests/identity.
"""

import argparse
import collections
import contextlib
import copy
import enum
import functools
import logging
import pickle
import random
import threading
import types
import warnings

import numpy as np
import pytest
import torch
from tests.slow import thinned
from torch import nn

import warmstore as ws
from warmstore.features.keyed.cache_versions import difference, fingerprint_of
from warmstore.identity import Identity

X = torch.rand(4, 3)
IDS = range(4)
GLOBAL: dict[str, nn.Module] = {}


def linear(seed):
    torch.manual_seed(seed)
    return nn.Linear(3, 3).requires_grad_(False).eval()


def fill(folder, module, **options):
    with ws.FeatureCache(folder, "id") as cache:
        return ws.CachedModule(module, cache, **options)(X, cache_ids=IDS)


def reused(folder, module, **options):
    """Whether a module finds what another one has filled; its outputs are then what it would have computed."""
    with ws.FeatureCache(folder, "id") as cache:
        cached = ws.CachedModule(module, cache, **options)
        try:
            found = cached(X, cache_ids=IDS)
        except ws.StaleCache:
            return False
        assert cache.stats().misses == 0
        return found


# Modules of two settings each.


class Calls(nn.Module):
    """Calls whatever it holds as a plain attribute."""

    def __init__(self, function):
        super().__init__()
        self.held = function

    def forward(self, x):
        return self.held(x)


class InList(nn.Module):
    def __init__(self, seed):
        super().__init__()
        self.parts = [linear(7), {"inner": (linear(seed),)}]

    def forward(self, x):
        return self.parts[1]["inner"][0](self.parts[0](x))


class UsesGlobal(nn.Module):
    def forward(self, x):
        return GLOBAL["module"](x)


def uses_global(seed):
    GLOBAL["module"] = linear(seed)
    return UsesGlobal()


class SetElsewhere(nn.Module):
    """Attributes that other methods than `__init__` set: one that it calls, and one that the program calls."""

    def __init__(self, k):
        super().__init__()
        self.prepare(k)

    def prepare(self, k):
        self.k = k
        return self

    def forward(self, x):
        return x * self.k


class Options:
    def __init__(self, k):
        self.k, self.nested = k, types.SimpleNamespace(shift=1)


class Frozen(enum.Enum):
    DOUBLE = functools.partial(torch.mul, other=2)
    TRIPLE = functools.partial(torch.mul, other=3)


class WithOptions(nn.Module):
    def __init__(self, options):
        super().__init__()
        self.options = options

    def forward(self, x):
        return x * self.options.k


class Noisy(nn.Module):
    def __init__(self, mean):
        super().__init__()
        self.prior = torch.distributions.Normal(torch.tensor(mean), torch.tensor(1.0))

    def forward(self, x):
        return self.prior.log_prob(x)


class Recorder:
    def __init__(self, factor):
        self.factor = factor

    def hook(self, module, given, output):
        return output * self.factor


def hooked(factor):
    module = linear(0)
    module.register_forward_hook(Recorder(factor).hook)
    return module


def sparse(value):
    module = Calls(lambda x: x * module.table.to_dense()[-1, -1])
    at = torch.arange(5000).repeat(2, 1)
    values = torch.ones(5000)
    values[2500] = value  # a `repr` shows no element in the middle
    values[-1] = value
    module.table = torch.sparse_coo_tensor(at, values, check_invariants=False).coalesce()
    return module


class Scaled(nn.Module):
    def __init__(self, k):
        super().__init__()
        self.inner = linear(0)
        self.k = k

    def forward(self, x):
        return self.inner(x) * self.k


def quantized(seed):
    with quiet():
        return torch.ao.quantization.quantize_dynamic(nn.Sequential(linear(seed)), {nn.Linear})


@contextlib.contextmanager
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls much of this deprecated
        yield


def scripted(k):
    with quiet():
        return torch.jit.trace(Scaled(k), X)


def traced(k):
    return torch.fx.symbolic_trace(Scaled(k))


def exported(k):
    with quiet():
        return torch.export.export(Scaled(k), (X,)).module()


def patched(k):
    module = linear(0)
    module.forward = types.MethodType(lambda self, x: x * k, module)
    return module


PAIRS = {
    "weights": (linear, 1, 2),
    "module in a list": (InList, 1, 2),
    "module in a closure": (lambda seed: Calls((lambda inner: lambda x: inner(x))(linear(seed))), 1, 2),
    "module in a partial": (lambda seed: Calls(functools.partial(torch.nn.Module.__call__, linear(seed))), 1, 2),
    "module in a global": (uses_global, 1, 2),
    "bound method of a module": (lambda seed: Calls(linear(seed).forward), 1, 2),
    "bound method of an object": (lambda k: Calls(functools.partial(Recorder(k).hook, None, None)), 1, 2),
    "quantised": (quantized, 1, 2),
    "sparse": (sparse, 1.0, 2.0),
    "jit": (scripted, 2.0, 3.0),
    "fx": (traced, 2.0, 3.0),
    "export": (exported, 2.0, 3.0),
    "set in another method": (SetElsewhere, 1, 2),
    "argparse.Namespace": (lambda k: WithOptions(argparse.Namespace(k=k)), 1, 2),
    "own object": (lambda k: WithOptions(Options(k)), 1, 2),
    "mappingproxy": (lambda k: Calls(lambda x, m=types.MappingProxyType({"k": k}): x * m["k"]), 1, 2),
    "named tuple": (lambda k: WithOptions(collections.namedtuple("Options", "k")(k)), 1, 2),
    "enum that holds a partial": (lambda name: Calls(lambda x, e=Frozen[name]: e.value(x)), "DOUBLE", "TRIPLE"),
    "distribution": (Noisy, 0.0, 1.0),
    "hook that is a bound method": (hooked, 2, 3),
    "patched forward": (patched, 2, 3),
}


@pytest.mark.parametrize("kind", thinned(6, PAIRS))
def test_other_modules_are_others_and_the_same_are_found(tmp_path, kind):
    make, one, other = PAIRS[kind]
    filled = fill(tmp_path, make(one))
    found = reused(tmp_path, make(one))
    assert found is not False
    assert torch.equal(found, filled)
    assert reused(tmp_path, make(other)) is False


def test_set_again_by_the_program(tmp_path):
    module = SetElsewhere(2)
    cached = ws.CachedModule(module, ws.FeatureCache(tmp_path, "id"))
    cached(X, cache_ids=IDS)
    module.prepare(3)
    with pytest.raises(ws.StaleCache, match=r"`module\.k` was 2, is 3"):
        cached(X, cache_ids=IDS)


class TestMemory:
    """Modules that remember, in the calls of the cache, compute the same."""

    class Memo(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.memo, self.calls = linear(0), {}, 0

        def forward(self, x):
            self.calls += 1
            self.memo[len(x)] = torch.arange(len(x))
            if not hasattr(self, "shape"):
                self.shape = x.shape[1:]
            return self.inner(x)

    @staticmethod
    def capturing():
        kept = {}
        module = linear(0)
        module.register_forward_hook(lambda module, given, output: kept.__setitem__("last", (given, output)))
        return module

    @pytest.mark.parametrize("kind", ["memo", "capturing"])
    def test_filled_and_then_wrapped(self, tmp_path, kind):
        module = self.Memo() if kind == "memo" else self.capturing()
        loader = [(X[at : at + 2], [at, at + 1]) for at in range(0, 4, 2)]
        with ws.FeatureCache(tmp_path, "id") as cache:
            assert cache.fill(module, loader).computed == 4
            cached = ws.CachedModule(module, cache)
            cached(X, cache_ids=IDS)
            assert cache.stats().hits == 4
            for at in range(4, 12, 2):
                cached(torch.rand(2, 3), cache_ids=[at, at + 1]).mul_(2)  # outputs are the caller's
            cached(X, cache_ids=IDS)
            assert cache.stats().hits == 8
            assert cache.fill(cached, loader).computed == 0
        fresh = self.Memo() if kind == "memo" else self.capturing()
        assert reused(tmp_path, fresh) is not False  # in another run

    def test_what_the_program_filled_before_counts(self, tmp_path):
        fill(tmp_path, self.Memo())
        used = self.Memo()
        used(X)
        assert reused(tmp_path, used) is False

    def test_but_not_where_it_is_left_out(self, tmp_path):
        left_out = ["module.calls", "module.memo", "module.shape"]
        filled = fill(tmp_path, self.Memo(), ignore=left_out)
        used = self.Memo()
        used.calls = 7
        assert torch.equal(reused(tmp_path, used, ignore=left_out), filled)

    def test_calls_of_a_disabled_wrapper_are_ours(self, tmp_path):
        module = self.Memo()
        cached = ws.CachedModule(module, ws.FeatureCache(tmp_path, "id"))
        cached(X, cache_ids=IDS)
        cached.enabled = False
        cached(X)
        cached.enabled = True
        cached(X, cache_ids=IDS)
        assert cached.cache.stats().hits == 4

    @pytest.mark.parametrize("copied", [copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module))])
    def test_copies_carry_it(self, tmp_path, copied):
        cached = ws.CachedModule(self.Memo(), ws.FeatureCache(tmp_path, "id"))
        cached(X, cache_ids=IDS)
        cached.cache.flush()
        twin = copied(cached)
        before = twin.cache.stats().hits
        for _ in range(2):
            twin(X, cache_ids=IDS)
            twin(torch.rand(1, 3), cache_ids=[99])
        assert twin.cache.stats().hits >= before + 8
        twin.cache.close()


class TestUnknown:
    @staticmethod
    def unknown():
        module = linear(0)
        module.lines = (line for line in "abc")
        return module

    def test_is_refused_when_wrapping(self, tmp_path):
        with pytest.raises(
            ws.NoFingerprint, match=r"module\.lines: the items of a generator .* version='1'.* ignore=\('module\.lines'"
        ):
            ws.CachedModule(self.unknown(), ws.FeatureCache(tmp_path, "id"))

    def test_a_version_stands_for_it(self, tmp_path):
        filled = fill(tmp_path, self.unknown(), version="a")
        assert torch.equal(reused(tmp_path, self.unknown(), version="a"), filled)
        assert reused(tmp_path, self.unknown(), version="b") is False
        other = self.unknown()
        other.local = threading.local()
        assert reused(tmp_path, other, version="a") is False  # nobody vouched for that

    def test_left_out(self, tmp_path):
        filled = fill(tmp_path, self.unknown(), ignore=["module.lines"])
        assert torch.equal(reused(tmp_path, self.unknown(), ignore=["module.lines"]), filled)

    def test_put_there_by_the_program_later(self, tmp_path):
        module = linear(0)
        cached = ws.CachedModule(module, ws.FeatureCache(tmp_path, "id"))
        cached(X, cache_ids=IDS)
        module.lines = (line for line in "abc")
        with pytest.raises(ws.NoFingerprint, match=r"module\.lines"):
            cached(X, cache_ids=IDS)
        del module.lines
        cached(X, cache_ids=IDS)

    def test_objects_may_say_themselves(self, tmp_path):
        class Handle:
            def __init__(self, name):
                self.name, self.lock = name, (one for one in ())

            def __identity__(self):
                return self.name

        def make(name):
            module = linear(0)
            module.handle = Handle(name)
            return module

        filled = fill(tmp_path, make("a"))
        assert torch.equal(reused(tmp_path, make("a")), filled)
        assert reused(tmp_path, make("b")) is False

    def test_lazy_layers_have_no_values_yet(self, tmp_path):
        module = nn.LazyLinear(3)
        with pytest.raises(ws.NoFingerprint, match="call the module once"):
            ws.CachedModule(module, ws.FeatureCache(tmp_path, "id"), enforce_stateless=False)
        module(X)
        ws.CachedModule(module.requires_grad_(False), ws.FeatureCache(tmp_path, "id"))(X, cache_ids=IDS)


class Powers(nn.Module):
    def forward(self, x, power=1, options=None):
        return x**power


class TestArguments:
    def test_that_change_are_named(self, tmp_path):
        cached = ws.CachedModule(Powers(), ws.FeatureCache(tmp_path, "id"))
        cached(X, power=2, cache_ids=IDS)
        for arguments, said in (
            ({"power": 3}, "`argument power` was 2, is 3"),
            ({"power": 2.0}, "`argument power` was 2, is 2.0"),
            ({}, "`argument power` is gone, and was 2"),
            ({"power": 2, "options": {"k": 1}}, "argument options"),
            ({"power": 2, "options": Options(1)}, "argument options"),
        ):
            with pytest.raises(ws.StaleCache, match=said):
                cached(X, cache_ids=IDS, **arguments)
        cached(X, power=2, cache_ids=IDS)

    def test_objects_count_by_what_is_in_them(self, tmp_path):
        cached = ws.CachedModule(Powers(), ws.FeatureCache(tmp_path, "id"))
        cached(X, options=Options(1), cache_ids=IDS)
        cached(X, options=Options(1), cache_ids=IDS)
        assert cached.cache.stats().hits == 4
        with pytest.raises(ws.StaleCache, match=r"`argument options\.k` was 1, is 2"):
            cached(X, options=Options(2), cache_ids=IDS)

    def test_of_which_nothing_can_be_told_are_refused(self, tmp_path):
        cached = ws.CachedModule(Powers(), ws.FeatureCache(tmp_path, "id"))
        with pytest.raises(ws.NoFingerprint, match="argument options: the items of a generator"):
            cached(X, options=(one for one in ()), cache_ids=IDS)
        vouched = ws.CachedModule(Powers(), ws.FeatureCache(tmp_path, "id"), version="1")
        for _ in range(2):
            vouched(X, options=(one for one in ()), cache_ids=IDS)
        assert vouched.cache.stats().hits == 4

    def test_files_that_they_name(self, tmp_path):
        (tmp_path / "words.txt").write_text("a")
        cached = ws.CachedModule(Powers(), ws.FeatureCache(tmp_path, "id"))
        name = str(tmp_path / "words.txt")
        cached(X, options=name, cache_ids=IDS)
        (tmp_path / "words.txt").write_text("a b")
        with pytest.raises(ws.StaleCache, match="argument options"):
            cached(X, options=name, cache_ids=IDS)


def test_a_cached_module_in_a_module_is_what_it_wraps(tmp_path):
    inside = ws.CachedModule(linear(0), ws.FeatureCache(tmp_path, "inner"))
    fill(tmp_path, Calls(linear(0)))
    outer = Calls(inside)
    cached = ws.CachedModule(outer, ws.FeatureCache(tmp_path, "outer"))
    assert cached._detector.identity().unknown == {}


class TestOtherRules:
    """What was filled before these rules of identity stays as it is, and is no reason to stop."""

    @pytest.fixture
    def old(self, tmp_path):
        with ws.FeatureCache(tmp_path, "id") as cache:
            cache._bind({"weights": "a", "code": "b", "settings": "c", "train/eval mode": ""})
            cache.put_batch(IDS, X)
        return tmp_path

    @pytest.mark.parametrize("versions", ["raise", "new"])
    def test_samples_are_computed_beside_it(self, old, versions, caplog):
        for again in range(2):
            with ws.FeatureCache(old, "id", versions=versions) as cache:
                cached = ws.CachedModule(linear(0), cache)
                assert torch.equal(cached(X, cache_ids=IDS), linear(0)(X))
                assert cache.stats().misses == (0 if again else 4)
        with ws.FeatureCache(old, "id") as cache:
            assert torch.equal(cache.get_batch(IDS)[0], X)
            assert len(cache.stats().versions) == 2
        said = [record for record in caplog.records if "other rules" in record.getMessage()]
        assert len(said) == 1

    def test_another_module_is_refused_then_as_ever(self, old):
        fill(old, linear(0))
        assert reused(old, linear(1)) is False
        assert reused(old, linear(0)) is not False

    def test_read_only_finds_nothing(self, old):
        with ws.FeatureCache(old, "id", read_only=True) as cache:
            assert torch.equal(ws.CachedModule(linear(0), cache)(X, cache_ids=IDS), linear(0)(X))
        assert len(list(old.iterdir())) == 1

    def test_rows_that_wait_go_where_they_were_put(self, old):
        with ws.FeatureCache(old, "id") as cache:
            cache.put_batch([77], X[:1])
            ws.CachedModule(linear(0), cache)(X, cache_ids=IDS)
        with ws.FeatureCache(old, "id") as cache:
            assert torch.equal(cache.get_batch([77])[0], X[:1])

    def test_ignored_as_asked(self, old):
        with ws.FeatureCache(old, "id", versions="ignore") as cache:
            assert torch.equal(ws.CachedModule(linear(0), cache)(X, cache_ids=IDS), X)

    def test_is_not_merged_with_what_a_module_has_filled(self, old):
        with ws.FeatureCache(old, "other") as cache:
            ws.CachedModule(linear(0), cache)(X, cache_ids=IDS)
            with pytest.raises(ws.StaleCache, match="other rules"):
                cache.merge(old / "id")


def test_facts_are_bounded_and_still_name_what_changed():
    def found(change):
        facts = {f"module.layer{at // 100}.part{at}.weight": f"tensor {at}" for at in range(5000)}
        facts.update(change)
        return fingerprint_of(Identity(str(hash(str(change))), facts), {}, "")

    one, other = found({}), found({"module.layer7.part700.weight": "tensor x"})
    assert len(one["facts"]) < 100
    assert difference(one, other) == "something in `module.layer7` changed"
    assert difference(one, found({})) == ""


def test_stored_facts_say_what_changed_in_another_process(tmp_path):
    fill(tmp_path, SetElsewhere(1))
    with ws.FeatureCache(tmp_path, "id") as cache, pytest.raises(ws.StaleCache, match=r"`module\.k` was 1, is 2"):
        ws.CachedModule(SetElsewhere(2), cache)(X, cache_ids=IDS)


SCRIPT = """
import sys, torch
from torch import nn
import warmstore as ws
def pick(x): return x if len({"a", "b", "c", "d"}) == 4 else frozenset(("e", "f"))
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.names, self.f = nn.Linear(3, 3), {"x", "y", "z"}, lambda x: x in {"g", "h"}
        self.requires_grad_(False)
    def forward(self, x): return pick(self.a(x))
exec("class Bare(Model):\\n  def forward(self, x): return x if 1 in {'k', 'l', 'm', 1} else -x")
for m in (Model(), Bare()):
    with ws.FeatureCache(sys.argv[1], type(m).__name__) as cache:
        ws.CachedModule(m, cache)(torch.ones(2, 3), cache_ids=[1, 2])
        print(cache.stats().hits)
"""


@pytest.mark.slow
def test_same_in_every_process(run_script):
    assert run_script(SCRIPT, fresh=True, PYTHONHASHSEED="1") == "0\n0\n"
    assert run_script(SCRIPT, fresh=True, PYTHONHASHSEED="2") == "2\n2\n"


def test_code_that_draws_where_it_is_not_called(tmp_path):
    """As layers do when they are made, and as others do in training."""

    class Drawing(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(3) * random.random() * np.random.rand(), requires_grad=False)
            self.weight.fill_(2)

        def forward(self, x):
            return x * torch.rand(3) if self.training else torch.dropout(x * self.weight, 0.5, self.training)

    filled = fill(tmp_path, Drawing().eval())
    torch.rand(7), random.random(), np.random.rand()
    assert torch.equal(reused(tmp_path, Drawing().eval()), filled)


def test_logging_and_locks_make_no_difference(tmp_path):
    def make():
        module = linear(0)
        module.logger, module.lock = logging.getLogger("x"), threading.Lock()
        return module

    filled = fill(tmp_path, make())
    assert torch.equal(reused(tmp_path, make()), filled)


def test_arrays_of_a_module_count_in_every_element(tmp_path):
    def make(value):
        module = Calls(lambda x: x * float(module.table[5000]))
        module.table = np.ones(10_000)
        module.table[5000] = value
        return module

    fill(tmp_path, make(1.0))
    assert reused(tmp_path, make(1.0)) is not False
    assert reused(tmp_path, make(2.0)) is False
