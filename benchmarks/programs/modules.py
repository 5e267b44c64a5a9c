"""Frozen modules whose outputs are kept: edits that change them, and what happens every day and does not.

Caches of functions get the module as an argument of the step that calls it.
"""

from __future__ import annotations

from collections.abc import Mapping
from textwrap import dedent
from typing import Any

from benchmarks.programs.case import Case, program

_HEAD = """
import torch
from torch import nn

torch.manual_seed(0)
"""
_TAIL = """

model = Net().eval().requires_grad_(False)
"""
_STEP = """

def step(value, model):
    with torch.no_grad():
        return {"y": model(torch.tensor([value]))[0].tolist()}


ARGUMENTS = {"model": model}
VALUES = [[0.5, -1.0, 2.0, -3.0], [1.0, 0.0, -0.5, 4.0], [-2.0, 3.0, 1.5, -1.0]]
"""


def _case(
    name: str,
    net: str,
    *changes: tuple[str, str],
    tail: str = "",
    files: Mapping[str, str] | None = None,
    **how: Any,
) -> Case:
    """`net` is a class Net; `tail` comes after `model` is made."""
    main = _HEAD + dedent(net).rstrip("\n") + "\n" + _TAIL + dedent(tail) + _STEP
    return Case(name, program(main, files), changes, module=True, **how)


_LINEAR = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3))

    def forward(self, x):
        return self.layers(x)

    def summary(self):
        return "two layers"
"""
_CONFIGURED = """
import argparse


class Scaled(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.args = args
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        return self.layer(x) * self.args.scale


class Net(Scaled):
    def __init__(self):
        super().__init__(argparse.Namespace(scale=3, run="monday"))
"""
_FROM_CHECKPOINT = """
import io

file = io.BytesIO()
torch.save(model.state_dict(), file)
file.seek(0)
model = Net().eval().requires_grad_(False)
model.load_state_dict(torch.load(file))
"""
_HOOKED = """
class Meter:
    def __init__(self, factor):
        self.factor = factor

    def scale(self, module, args, output):
        return output * self.factor
"""

MODULE_EDITS = (
    _case("the weights", _LINEAR, ("manual_seed(0)", "manual_seed(1)"), quick=True),
    _case(
        "a buffer",
        """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.norm = nn.BatchNorm1d(4)

            def forward(self, x):
                return self.norm(x)
        """,
        ("fill_(3)", "fill_(4)"),
        tail="model.norm.running_mean.fill_(3)\n",
    ),
    _case("a layer, replaced", _LINEAR, ("nn.ReLU()", "nn.Tanh()"), quick=True),
    _case(
        "a setting of a layer",
        """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.layers = nn.Sequential(nn.Linear(4, 4), nn.LeakyReLU(0.3))

            def forward(self, x):
                return self.layers(x)
        """,
        ("(0.3)", "(0.4)"),
    ),
    _case("the code of `forward`", _LINEAR, ("self.layers(x)", "self.layers(x) * 2")),
    _case(
        "a helper of `forward` in another module",
        """
        from helpers import scale


        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = nn.Linear(4, 3)

            def forward(self, x):
                return scale(self.layer(x))
        """,
        ("* 3", "* 4"),
        files={"helpers.py": "def scale(value):\n    return value * 3\n"},
        quick=True,
    ),
    _case(
        "a constant of another module",
        """
        import cfg


        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = nn.Linear(4, 3)

            def forward(self, x):
                return self.layer(x) * cfg.N
        """,
        ("= 3", "= 4"),
        files={"cfg.py": "N = 3\n"},
    ),
    _case(
        "a class attribute",
        """
        class Net(nn.Module):
            factor = 3.0

            def __init__(self):
                super().__init__()
                self.layer = nn.Linear(4, 3)

            def forward(self, x):
                return self.layer(x) * self.factor
        """,
        ("= 3.0", "= 4.0"),
    ),
    _case(
        "an attribute that another method sets",
        """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = nn.Linear(4, 3)
                self.scale_by(1)

            def scale_by(self, factor):
                self.factor = factor

            def forward(self, x):
                return self.layer(x) * self.factor
        """,
        ("scale_by(3)", "scale_by(4)"),
        tail="model.scale_by(3)\n",
    ),
    _case("a field of a configuration", _CONFIGURED, ("scale=3", "scale=4")),
    _case(
        "the code of a hook",
        _LINEAR,
        ("output * 3", "output * 4"),
        tail="""
        def hook(module, args, output):
            return output * 3


        model.register_forward_hook(hook)
        """,
    ),
    _case(
        "the object whose method is a hook",
        _HOOKED + "\n" + _LINEAR,
        ("Meter(3)", "Meter(4)"),
        tail="model.register_forward_hook(Meter(3).scale)\n",
    ),
    _case(
        "a hook, added",
        _LINEAR,
        ("# hooks", "model.layers[0].register_forward_hook(lambda *of: of[-1] * 2)"),
        tail="# hooks\n",
    ),
    _case(
        "`forward`, patched",
        _LINEAR,
        ("value * 3", "value * 4"),
        tail="""
        layers = model.layers
        model.forward = lambda value: layers(value * 3)
        """,
    ),
    _case(
        "layers in a plain list",
        """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.layers = [nn.Linear(4, 4).requires_grad_(False), nn.Linear(4, 3).requires_grad_(False)]

            def forward(self, x):
                for layer in self.layers:
                    x = layer(x)
                return x
        """,
        ("manual_seed(0)", "manual_seed(1)"),
    ),
    _case(
        "layers in a closure",
        """
        def applied(layer):
            return lambda value: layer(value)


        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.apply_layer = applied(nn.Linear(4, 3).requires_grad_(False))

            def forward(self, x):
                return self.apply_layer(x)
        """,
        ("manual_seed(0)", "manual_seed(1)"),
    ),
    _case(
        "a layer in a global",
        """
        projection = nn.Linear(4, 3).requires_grad_(False)


        class Net(nn.Module):
            def forward(self, x):
                return projection(x)
        """,
        ("manual_seed(0)", "manual_seed(1)"),
    ),
    _case(
        "one element of a long sparse tensor",
        """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                weights = torch.zeros(1_000)
                weights[:900] = 1
                weights[450] = 3
                self.weights = weights.to_sparse()

            def forward(self, x):
                return x * self.weights.to_dense().sum()
        """,
        ("= 3", "= 4"),
    ),
    _case(
        "a distribution",
        """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.prior = torch.distributions.Normal(0.0, 3.0)

            def forward(self, x):
                return self.prior.log_prob(x)
        """,
        ("3.0)", "4.0)"),
    ),
    _case(
        "a traced graph",
        _LINEAR,
        ("self.layers(x)", "self.layers(x) * 2"),
        tail="model = torch.fx.symbolic_trace(model)\n",
    ),
)


def _neutral(name: str, net: str, *changes: tuple[str, str], **how: Any) -> Case:
    return _case(name, net, *changes, neutral=True, **how)


MODULE_NEUTRAL = (
    _neutral("nothing: the same program again", _LINEAR, quick=True),
    _neutral("a comment in `forward`", _LINEAR, ("return self.layers", "# both\n        return self.layers")),
    _neutral("a docstring", _LINEAR, ("(nn.Module):\n", '(nn.Module):\n    """Two layers."""\n\n'), quick=True),
    _neutral("a method that `forward` does not call", _LINEAR, ('"two layers"', '"2 layers"')),
    _neutral("a field of a configuration that `forward` does not read", _CONFIGURED, ("monday", "friday")),
    _neutral("a moved checkout", _LINEAR, moved=True),
    _neutral(
        "a memo that `forward` fills",
        """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = nn.Linear(4, 3)
                self.masks = {}

            def forward(self, x):
                if x.shape[1] not in self.masks:
                    self.masks[x.shape[1]] = torch.ones(x.shape[1])
                return self.layer(x * self.masks[x.shape[1]])
        """,
    ),
    _neutral(
        "a hook that captures activations",
        _LINEAR,
        tail="""
        captured = {}
        model.layers[0].register_forward_hook(lambda module, args, output: captured.update(first=output))
        """,
    ),
    _neutral(
        "a UUID that `forward` does not read",
        """
        import uuid


        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = nn.Linear(4, 3)
                self.id = uuid.uuid4()

            def forward(self, x):
                return self.layer(x)
        """,
    ),
    _neutral(
        "a logger that `forward` writes to",
        """
        import logging


        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = nn.Linear(4, 3)
                self.log = logging.getLogger("net")

            def forward(self, x):
                self.log.debug("%d samples", len(x))
                return self.layer(x)
        """,
    ),
    _neutral(
        "the same weights, from a checkpoint",
        _LINEAR,
        ("# weights", _FROM_CHECKPOINT),
        tail="# weights\n",
    ),
    _neutral("a deep copy", _LINEAR, ("# copy", "import copy\n\nmodel = copy.deepcopy(model)"), tail="# copy\n"),
)
