"""What a program puts into installed modules is found, again and again."""

import colorsys
import importlib
import json
import pickle
import sys
import types
from typing import Any

import numpy as np
import pytest
import torch
import xxhash

from warmstore.identity.patches import Patches, search
from warmstore.identity.patches.bindings import Bindings


def mine(*_: object) -> int:
    return 3


def other(*_: object) -> int:
    return 4


def found() -> list[str]:
    patches = Patches().look()
    return sorted(place for name in patches.distributions for place, _ in patches.of(name))


def test_functions_come_change_and_go(monkeypatch: pytest.MonkeyPatch) -> None:
    before = found()
    monkeypatch.setattr(json, "dumps", mine)
    monkeypatch.setattr(torch.nn.Linear, "forward", staticmethod(mine))
    assert sorted({*found()} - {*before}) == ["json.dumps", "torch.nn.modules.linear.Linear.forward"]
    monkeypatch.setattr(json, "dumps", other)
    assert ("json.dumps", other) in Patches().look().of("python")
    monkeypatch.undo()
    assert found() == before


def test_names_that_were_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(colorsys, "mine", mine, raising=False)
    assert "colorsys.mine" in found()
    monkeypatch.delattr(colorsys, "mine")
    assert "colorsys.mine" not in found()


@pytest.mark.parametrize(
    "name",
    [
        "__compiled_fn_3_95d89f2c_7280_4da3_970e_84b9c0791fa2",
        "__resume_at_10_4",
        "__comprehension_<lambda>_at_12_5",
        "__gen_rand_values_2",
        "__warnings_warn_wrapper_6",
        "_fn_140303442117264_c0",
        "_140303442117264_c12",
    ],
)
def test_names_that_only_what_torch_compiles_reads(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = found()
    monkeypatch.setattr(colorsys, name, mine, raising=False)
    assert found() == before


@pytest.mark.parametrize(
    "name", ["conv_3_c2", "__import_mine", "__compiled_fn", "my__compiled_fn_3", "_140303442117264"]
)
def test_names_that_only_look_like_those(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = found()
    monkeypatch.setattr(colorsys, name, mine, raising=False)
    assert sorted({*found()} - {*before}) == [f"colorsys.{name}"]


@pytest.fixture
def searched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the modules that are searched from now on."""
    found()
    names: list[str] = []
    run = search.ModuleSearch.run
    monkeypatch.setattr(search.ModuleSearch, "run", lambda self: (names.append(self._name), run(self))[1])
    return names


def test_other_values_cost_no_search(searched: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(colorsys, "ONE_THIRD", 3.0)
    monkeypatch.setattr(np, "__version__", "0")
    found()
    assert searched == []


def test_one_module_is_searched_for_one_change(searched: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.nn.Linear, "forward", mine)
    assert "torch.nn.modules.linear.Linear.forward" in found()
    assert searched == ["torch.nn.modules.linear"]
    monkeypatch.delitem(sys.modules, "stringprep", raising=False)
    found()
    searched.clear()
    importlib.import_module("stringprep")
    found()
    assert searched == ["stringprep"]


def test_one_name_comes_where_another_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    """All modules have as many values as before, and those between the two have the same ones at other places."""
    monkeypatch.setattr(colorsys, "mine", mine, raising=False)
    assert "colorsys.mine" in found()
    monkeypatch.delattr(colorsys, "mine")
    monkeypatch.setattr(json, "mine", mine, raising=False)
    assert [place for place in found() if place.endswith(".mine")] == ["json.mine"]
    monkeypatch.delattr(json, "mine")
    monkeypatch.setattr(colorsys, "mine", mine, raising=False)
    assert [place for place in found() if place.endswith(".mine")] == ["colorsys.mine"]


def test_the_module_of_a_function_comes_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """A function from text counts as the program's while its namespace is that of a loaded module."""
    module = types.ModuleType("cells")
    exec(compile("def made(*_): return 5", "<cell>", "exec"), vars(module))
    monkeypatch.setattr(json, "dumps", module.made)
    assert "json.dumps" not in found()
    monkeypatch.setitem(sys.modules, "cells", module)
    assert "json.dumps" in found()


def test_modules_that_come(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "this"
    assert name not in sys.modules
    before = found()
    with open("/dev/null", "w") as nowhere:
        monkeypatch.setattr(sys, "stdout", nowhere)
        import this

        monkeypatch.undo()
    monkeypatch.setattr(this, "mine", mine, raising=False)
    assert sorted({*found()} - {*before}) == ["this.mine"]
    del sys.modules[name]
    assert found() == before


def test_none_goes_to_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json, "dumps", lambda value: "")  # which could not be pickled
    assert pickle.loads(pickle.dumps(Patches().look())).distributions == []


def test_another_thread_imports_during_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its modules are installed, though they came after the list of all modules was made."""
    name = "rlcompleter"
    monkeypatch.delitem(sys.modules, name, raising=False)
    found()
    list_modules = search._loaded_modules

    def list_and_import(known: Any) -> Any:
        loaded = list_modules(known)
        monkeypatch.setattr(json, "Completer", importlib.import_module(name).Completer, raising=False)
        return loaded

    monkeypatch.setattr(search, "_loaded_modules", list_and_import)
    monkeypatch.setattr(json, "dumps", mine)
    if sys.modules.pop("stringprep", None) is None:  # one module less or more, so that all are listed again
        importlib.import_module("stringprep")
    assert "json.dumps" in (now := found())
    assert "json.Completer" not in now
    assert "Completer" in vars(json)
    monkeypatch.undo()
    assert not {"json.dumps", "json.Completer"} & {*found()}


@pytest.mark.parametrize(
    "text", ["def multi_head_attention_forward(*_): return 1", "class multi_head_attention_forward: pass"]
)
def test_another_library_replaces_a_function_by_one_of_the_same_name(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "multi_head_attention_forward"
    before = found()
    monkeypatch.setattr(xxhash, name, None, raising=False)
    exec(text, vars(xxhash))
    monkeypatch.setattr(torch.nn.functional, name, vars(xxhash)[name])
    assert {*found()} - {*before} == {f"torch.nn.functional.{name}"}


LATE = """
class Set:
    def run(self): pass
    def stay(self): pass

def run(): pass
def stay(): pass

def start():
    run = Set().run
    globals().update(locals())

start()
"""
"""As `pkg_resources` does, which many libraries import while a program runs."""


def test_a_module_that_replaces_its_functions_at_its_import_has_no_patches() -> None:
    code, own = compile(LATE, "late.py", "exec"), {"__name__": "late"}
    exec(code, own)
    module = Bindings(code, own)
    assert module.explain("run", own["run"])
    assert not module.explain("stay", own["run"].__self__.stay)
