"""Each kind of patch changes the identity of code that may run it, and the old identity is back when it is gone."""

import functools
import json
import operator
import subprocess
import sys
import unittest.mock
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import PIL.Image
import PIL.ImageFile
import PIL.ImageOps
import pytest
import torch
import torch._dynamo  # which disables itself in methods of torch's own classes
from tests.slow import thinned
from torch.nn import functional

from warmstore.identity import Identity, identify
from warmstore.identity.patches import Patches

pytestmark = pytest.mark.usefixtures("all_modules")


def step(x: Any) -> Any:
    return torch.relu(x), PIL.Image.new("L", (1, 1)), np.add(x, 1), json.dumps("a")


def mine(*_: object, **__: object) -> int:
    return 3


class Scaled:
    def __init__(self, n: int = 1) -> None:
        self.n = n

    def __call__(self, *_: object) -> int:
        return self.n

    def method(self, *_: object) -> int:
        return self.n


class MyImage(PIL.Image.Image):
    scale = 2


class Computed:
    def __get__(self, instance: object, owner: object = None) -> int:
        return 3


def answers() -> dict[str, int]:
    return {"a": 1}


SINGLE = functools.singledispatch(json.loads)
SINGLE.register(Scaled, mine)
PATCHES: dict[str, tuple[Any, str, Callable[[], Any]]] = {
    "partial over the function": (PIL.ImageOps, "crop", lambda: functools.partial(PIL.ImageOps.crop, border=2)),
    "partial of the program": (PIL.ImageOps, "crop", lambda: functools.partial(mine, 2)),
    "partial over a function of C": (
        functional,
        "gelu",
        lambda: functools.partial(functional.gelu, approximate="tanh"),
    ),
    "bound method": (PIL.ImageOps, "crop", lambda: Scaled().method),
    "callable object": (PIL.ImageOps, "crop", Scaled),
    "method of an installed object": (PIL.ImageOps, "crop", lambda: json.JSONDecoder().decode),
    "method of C": (PIL.ImageOps, "crop", lambda: answers().get),
    "mock": (PIL.ImageOps, "crop", lambda: unittest.mock.Mock(return_value=3)),
    "magic mock": (PIL.ImageOps, "crop", lambda: unittest.mock.MagicMock(side_effect=[1])),
    "autospec": (PIL.ImageOps, "crop", lambda: unittest.mock.create_autospec(PIL.ImageOps.crop)),
    "class": (PIL.Image, "Image", lambda: MyImage),
    "installed class": (PIL.Image, "Image", lambda: PIL.ImageFile.ImageFile),
    "property": (PIL.Image.Image, "size", lambda: property(mine)),
    "installed property": (PIL.Image.Image, "size", lambda: vars(PIL.Image.Image)["width"]),
    "descriptor": (PIL.Image.Image, "size", Computed),
    "static method": (PIL.Image.Image, "size", lambda: staticmethod(mine)),
    "partial method": (
        PIL.Image.Image,
        "resize",
        lambda: functools.partialmethod(vars(PIL.Image.Image)["resize"], resample=0),
    ),
    "method of another class": (torch.nn.Linear, "forward", lambda: torch.nn.Bilinear.forward),
    "method under another name": (PIL.Image.Image, "rotate", lambda: PIL.Image.Image.resize),
    "cache": (PIL.ImageOps, "crop", lambda: functools.lru_cache(mine)),
    "single dispatch": (PIL.ImageOps, "crop", lambda: functools.singledispatch(mine)),
    "single dispatch with a function of the program": (json, "loads", lambda: SINGLE),
    "installed function": (PIL.ImageOps, "crop", lambda: PIL.ImageOps.pad),
    "function of another package": (PIL.ImageOps, "crop", lambda: np.mean),
    "function of another package in Python's": (json, "loads", lambda: np.loadtxt),
    "function under another name": (np, "sum", lambda: np.mean),
    "universal function": (np, "add", lambda: np.subtract),
    "universal function of the program": (np, "add", lambda: np.frompyfunc(mine, 1, 1)),
    "vectorize": (PIL.ImageOps, "crop", lambda: np.vectorize(mine)),
    "vectorized function": (PIL.ImageOps, "crop", lambda: np.vectorize(PIL.ImageOps.crop)),
    "item getter": (PIL.ImageOps, "crop", lambda: operator.itemgetter(1)),
    "compiled function": (functional, "gelu", lambda: torch.compile(functional.gelu)),
    "compiled function of the program": (functional, "gelu", lambda: torch.compile(mine)),
    "decorated function of the program": (functional, "gelu", lambda: torch.no_grad()(mine)),
    "scripted module": (functional, "relu", lambda: torch.jit.script(torch.nn.ReLU())),
    "setting": (PIL.ImageFile, "LOAD_TRUNCATED_IMAGES", lambda: True),
    "setting that is a number": (PIL.Image, "MAX_IMAGE_PIXELS", lambda: None),
}


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
@pytest.mark.parametrize("name", thinned(6, PATCHES))
def test_a_patch_counts_while_it_is_there(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    holder, attribute, make = PATCHES[name]
    before = identify(step)
    assert not before.unknown
    monkeypatch.setattr(holder, attribute, make())
    patched = identify(step)
    assert patched.unknown or patched.digest != before.digest
    monkeypatch.undo()
    assert identify(step) == before


def identity_with(value: Any) -> Identity:
    with pytest.MonkeyPatch.context() as patching:
        patching.setattr(PIL.ImageOps, "crop", value)
        return identify(step)


@pytest.mark.parametrize(
    "make",
    thinned(
        2,
        [
            lambda n: functools.partial(mine, n),
            lambda n: functools.partial(PIL.ImageOps.pad, color=n),
            Scaled,
            lambda n: Scaled(n).method,
            lambda n: {"a": n}.get,
            lambda n: unittest.mock.Mock(return_value=n),
            lambda n: unittest.mock.MagicMock(**{"size.return_value": n}),
            lambda n: functools.lru_cache(lambda _: n),
            lambda n: np.vectorize(lambda _: n),
            operator.itemgetter,
        ],
    ),
)
def test_what_is_in_a_patch_counts(make: Callable[[int], Any]) -> None:
    one, same, other = identity_with(make(1)), identity_with(make(1)), identity_with(make(2))
    assert not one.unknown
    assert one == same
    assert one.digest != other.digest


def test_a_mock_is_not_its_calls() -> None:
    mock = unittest.mock.Mock(return_value=3)
    before = identity_with(mock)
    mock(1)
    assert identity_with(mock) == before
    mock.return_value = 4
    assert identity_with(mock).digest != before.digest


def test_a_registered_implementation_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib.metadata import files  # any module of Python with a dispatcher of its own

    dispatcher = functools.singledispatch(files)
    monkeypatch.setattr(sys.modules["importlib.metadata"], "dispatcher", dispatcher, raising=False)
    before = identify(step)
    dispatcher.register(Scaled, mine)
    assert identify(step).digest != before.digest


def test_a_state_in_a_patch_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    scaled = Scaled(1)
    monkeypatch.setattr(PIL.ImageOps, "crop", scaled)
    before = identify(step)
    scaled.n = 2
    assert identify(step).digest != before.digest


FRESH = """
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
from warmstore.identity.patches import Patches
patches = Patches().look()
print([place for name in patches.distributions for place, _ in patches.of(name)])
"""


@pytest.mark.parametrize(
    "more", thinned(4, ["torch.utils.data", "torch._inductor.compile_fx", "torch._dynamo", "hypothesis.strategies"])
)
def test_a_fresh_program_has_no_patches(more: str) -> None:
    """Also what is loaded late, such as a compiler: else an identity would change when it is loaded.

    hypothesis gives its functions the code of others and namespaces that are no modules.
    """
    modules = ["numpy", "torch", "PIL.Image", "PIL.ImageOps", more]
    found = subprocess.run([sys.executable, "-c", FRESH, *modules], capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"


def test_hooks_of_warmstore_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """The compile cache puts them into torch, and a program may use it later."""
    before = identify(step)
    monkeypatch.setattr(functional, "gelu", identify)
    monkeypatch.setattr(PIL.ImageOps, "crop", identify)
    assert identify(step) == before


def test_streams_and_hooks_of_messages_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    before = identify(step)
    monkeypatch.setattr(sys, "stdout", Scaled())
    monkeypatch.setattr(sys, "excepthook", mine)
    monkeypatch.setattr(warnings, "showwarning", mine)
    assert identify(step) == before


def test_constants_that_libraries_compute_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    places = {place for place, _ in Patches().look().of("pillow")}
    monkeypatch.setattr(PIL.ImageFile, "ERRORS", {}, raising=False)
    assert {place for place, _ in Patches().look().of("pillow")} == places
