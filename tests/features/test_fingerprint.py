"""F13: what a module's outputs depend on. Anything that changes them changes the fingerprint, and nothing else does."""

import copy
import functools
import types

import numpy as np
import pytest
import torch
from torch import nn

import warmstore as ws
from warmstore.features import fingerprint


def made(source, name="Model"):
    """A module of a class that has no source to read."""
    namespace = {"torch": torch, "nn": nn, "np": np, "functools": functools}
    exec(source, namespace)
    return namespace[name]()


FORWARD = """
def helper(x):
    return x * {helper}
FACTOR = {constant}
MEANS = [1, {listed}]
TABLE = torch.tensor([{tensor}])
class Model(nn.Module):
    power = {attribute}
    def forward(self, x, k={default}):
        y = helper(x) + FACTOR + MEANS[1] + TABLE + k
        z = sum((lambda v: other(v))(v) for v in y)
        return z ** self.power if y.sum() in {{"a", "b"}} else {literal}
    @staticmethod
    def unused(): return {static}
    @property
    def p(self): return {property}
def other(v):
    return deeper(v)
def deeper(v):
    return v + {deeper}
"""
NAMES = ["helper", "constant", "listed", "tensor", "attribute", "default", "literal", "static", "property", "deeper"]
DEFAULTS = dict.fromkeys(NAMES, 1)


@pytest.mark.parametrize("changed", DEFAULTS)
def test_code_without_source(changed):
    before = fingerprint.code(made(FORWARD.format(**DEFAULTS)))
    assert fingerprint.code(made(FORWARD.format(**DEFAULTS))) == before
    assert fingerprint.code(made(FORWARD.format(**{**DEFAULTS, changed: 2}))) != before


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Import modules from files, anew each time."""
    import importlib
    import linecache
    import sys

    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def load(**sources):
        for name, source in sources.items():
            (tmp_path / f"{name}.py").write_text(source)
            sys.modules.pop(name, None)
        linecache.clearcache()
        importlib.invalidate_caches()
        return importlib.import_module(next(iter(sources)))

    yield load
    for name in ("my_model", "my_helpers"):
        sys.modules.pop(name, None)


MODEL = """
from torch import nn
import my_helpers
from my_helpers import scale
class Base(nn.Module):
    def shift(self, x):
        return x + 1
class Model(Base):
    def forward(self, x):
        return my_helpers.rotate(scale(self.shift(x)))
"""
HELPERS = """
import math
ANGLE = 3
def scale(x):
    return x * 2
def rotate(x):
    return x * ANGLE
def unused(x):
    return x
"""


@pytest.mark.parametrize(
    ("file", "old", "new", "changes"),
    [
        ("my_model", "x + 1", "x + 2", True),
        ("my_model", "scale(self.shift(x))", "self.shift(scale(x))", True),
        ("my_helpers", "x * 2", "x * 3", True),
        ("my_helpers", "x * ANGLE", "x / ANGLE", True),
        ("my_helpers", "ANGLE = 3", "ANGLE = 4", True),
        ("my_helpers", "def unused(x):\n    return x", "def unused(x):\n    return 0", False),
        ("my_model", "x + 1", "x + 1  # a comment", False),
        ("my_model", "return x + 1", '"""Words."""\n        return (x+1)', False),
        ("my_model", "class Base", "\n\n\nclass Base", False),
    ],
)
def test_code_with_source(load, file, old, new, changes):
    sources = {"my_model": MODEL, "my_helpers": HELPERS}
    load(my_helpers=HELPERS)
    before = fingerprint.code(load(**sources).Model())
    edited = {**sources, file: sources[file].replace(old, new)}
    assert edited != sources
    load(my_helpers=edited["my_helpers"])
    after = fingerprint.code(load(my_model=edited["my_model"]).Model())
    assert (after != before) == changes


def test_classes_that_know_each_other_through_a_table():
    """Every registry of models is such a table; it once led round and round until the stack was full."""
    source = """
from torch import nn
KNOWN = {}
def register(name, value):
    KNOWN[name] = value
    return value
def plus(x): return x + 1
def minus(x): return x - 1
class Model(nn.Module):
    def forward(self, x): return KNOWN["function"](x) if KNOWN else x
KNOWN["model"], KNOWN["function"], KNOWN["other"] = Model, plus, minus
"""
    before = fingerprint.code(made(source))
    assert fingerprint.code(made(source)) == before
    assert fingerprint.code(made(source.replace("x + 1", "x + 2"))) != before
    assert fingerprint.code(made(source.replace("plus, minus\n", "minus, plus\n"))) != before


def test_programs_deeper_than_the_stack():
    chain = "".join(f"def f{at}(x): return f{at + 1}(x)\n" for at in range(3000))
    source = f"{chain}def f3000(x): return x\nclass Model(nn.Module):\n def forward(self, x): return f0(x)"
    assert fingerprint.code(made(source)) != fingerprint.code(made(source.replace("return x\n", "return -x\n")))


def with_attribute(value):
    module = nn.Identity()
    module.option = value
    module._hidden = value
    return module


class Plain:
    pass


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, 2),
        (1.0, 1),
        ("a", "b"),
        (None, 0),
        ((1, 2), (2, 1)),
        ([0.4, 0.5], [0.4, 0.6]),
        ({"a": [1]}, {"a": [2]}),
        ({1, 2}, {1, 3}),
        (torch.ones(3), torch.zeros(3)),
        ([torch.ones(3)], [torch.zeros(3)]),
        (torch.ones(3), torch.ones(3).half()),
        (np.ones(3), np.zeros(3)),
        (np.float32(1), np.float32(2)),
        (torch.tanh, torch.sigmoid),
        (torch.nn.functional.relu, torch.nn.functional.silu),
        (lambda x: x + 1, lambda x: x + 2),
        (functools.partial(torch.sum, dim=1), functools.partial(torch.sum, dim=2)),
        (types.SimpleNamespace(k=1), types.SimpleNamespace(k=2)),
        (torch.float16, torch.bfloat16),
    ],
)
def test_settings(one, other):
    before = fingerprint.settings(with_attribute(one))
    assert before != fingerprint.settings(with_attribute(other))
    assert before == fingerprint.settings(with_attribute(copy.deepcopy(one)))


def test_settings_of_torch_modules():
    plain = fingerprint.settings(nn.Conv2d(3, 4, 3))
    assert plain == fingerprint.settings(nn.Conv2d(3, 4, 3))
    for other in (nn.Conv2d(3, 4, 3, stride=2), nn.Conv2d(3, 4, 3, padding=1, padding_mode="reflect")):
        assert plain != fingerprint.settings(other)
    assert fingerprint.settings(nn.LayerNorm(3)) != fingerprint.settings(nn.LayerNorm(3, eps=1e-3))
    assert fingerprint.code(nn.Sequential(nn.ReLU())) != fingerprint.code(nn.Sequential(nn.Tanh()))
    assert fingerprint.code(nn.Sequential(nn.ReLU())) != fingerprint.code(nn.Sequential(nn.ReLU(), nn.ReLU()))


def test_objects_of_which_nothing_can_be_told_are_left_out():
    assert fingerprint.settings(with_attribute(Plain())) == fingerprint.settings(with_attribute(Plain()))
    endless: list = []
    endless.append(endless)
    assert fingerprint.settings(with_attribute(endless))


def test_hooks_are_code(linear):
    before = fingerprint.code(linear)
    handle = linear.register_forward_hook(lambda module, inputs, output: output * 2)
    assert fingerprint.code(linear) != before
    handle.remove()
    assert fingerprint.code(linear) == before
    linear.register_forward_pre_hook(lambda module, inputs: (inputs[0] * 2,))
    assert fingerprint.code(linear) != before


def test_forward_of_one_object_replaced(linear):
    before = fingerprint.settings(linear)
    linear.forward = types.MethodType(lambda self, x: x, linear)
    assert fingerprint.settings(linear) != before


def test_state_that_methods_keep_is_no_setting():
    source = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls, self.shapes, self.option = 0, [], 1
    def forward(self, x):
        self.calls += 1
        self.shapes.append(x.shape)
        self.last = x
        return x
"""
    model = made(source)
    before = fingerprint.settings(model), fingerprint.code(model)
    model(torch.ones(2))
    assert (fingerprint.settings(model), fingerprint.code(model)) == before
    model.option = 2
    assert fingerprint.settings(model) != before[0]


def test_weights():
    torch.manual_seed(0)
    one = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    before = fingerprint.weights(one)
    assert fingerprint.weights(copy.deepcopy(one)) == before
    assert fingerprint.weights(nn.Sequential(one[0], nn.BatchNorm1d(2, affine=False))) != before
    one[1].running_var[0] = 5
    assert fingerprint.weights(one) != before
    assert fingerprint.weights(one.bfloat16()) != before


def test_compiled_module_is_the_same(linear):
    linear.act = torch.tanh
    compiled = torch.compile(linear, backend="eager")
    for part in (fingerprint.weights, fingerprint.code, fingerprint.settings):
        assert part(compiled) == part(linear)


@pytest.mark.parametrize(
    ("module", "sensitive", "random"),
    [
        (nn.Linear(2, 2), False, False),
        (nn.LayerNorm(2), False, False),
        (nn.ReLU(), False, False),
        (nn.Dropout(0.5), True, True),
        (nn.Dropout(0.0), False, False),
        (nn.BatchNorm1d(2), True, True),
        (nn.RReLU(), True, True),
        (made("class Model(nn.Module):\n def forward(self, x): return x if self.training else -x"), True, False),
        (
            made("class Model(nn.Module):\n def forward(self, x): return torch.dropout(x, 0.5, self.training)"),
            True,
            True,
        ),
    ],
)
def test_modes_that_matter(tmp_path, module, sensitive, random):
    module.requires_grad_(False)
    assert bool(fingerprint.mode_sensitive(module)) == sensitive
    if random:
        with pytest.raises(RuntimeError, match="eval"):
            ws.CachedModule(module.train(), ws.FeatureCache(tmp_path, "id"))
        ws.CachedModule(module.train(), ws.FeatureCache(tmp_path, "id"), enforce_stateless=False)
        return
    x = torch.rand(3, 2)
    wrapped = ws.CachedModule(module.train(), ws.FeatureCache(tmp_path, "id"))
    wrapped(x, cache_ids=range(3))
    module.eval()
    if sensitive:
        with pytest.raises(ws.StaleCache, match="train/eval"):
            wrapped(x, cache_ids=range(3))
    else:
        wrapped(x, cache_ids=range(3))


SCRIPT = """
import sys, torch
from torch import nn
from warmstore.features import fingerprint
def pick(x): return x if x in {"a", "b", "c", "d"} else frozenset(("e", "f"))
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.names, self.f = nn.Linear(3, 3), {"x", "y", "z"}, lambda x: x in {"g", "h"}
    def forward(self, x): return pick(self.a(x))
exec("class Bare(Model):\\n  def forward(self, x): return x in {'k', 'l', 'm'}")
for m in (Model(), Bare()):
    print(fingerprint.weights(m), fingerprint.code(m), fingerprint.settings(m))
"""


def test_same_in_every_process(run_script):
    assert run_script(SCRIPT, PYTHONHASHSEED="1") == run_script(SCRIPT, PYTHONHASHSEED="2")
