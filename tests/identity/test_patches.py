"""What a program puts into installed modules is found, again and again."""

import colorsys
import json
import pickle
import sys

import numpy as np
import pytest
import torch

from warmstore.identity.patches import Patches, _namespaces


def mine(*_: object) -> int:
    return 3


def other(*_: object) -> int:
    return 4


def found() -> list[str]:
    return sorted(place for places in Patches().look().values() for place, _ in places)


def test_functions_come_change_and_go(monkeypatch: pytest.MonkeyPatch) -> None:
    before = found()
    monkeypatch.setattr(json, "dumps", mine)
    monkeypatch.setattr(torch.nn.Linear, "forward", staticmethod(mine))
    assert sorted({*found()} - {*before}) == ["json.dumps", "torch.nn.modules.linear.Linear.forward"]
    monkeypatch.setattr(json, "dumps", other)
    assert ("json.dumps", other) in Patches().look()["python"]
    monkeypatch.undo()
    assert found() == before


def test_names_that_were_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(colorsys, "mine", mine, raising=False)
    assert "colorsys.mine" in found()
    monkeypatch.delattr(colorsys, "mine")
    assert "colorsys.mine" not in found()


def test_other_values_cost_no_search(monkeypatch: pytest.MonkeyPatch) -> None:
    found()
    monkeypatch.setattr(_namespaces, "_scan", lambda: pytest.fail("all was gone through"))
    monkeypatch.setattr(colorsys, "ONE_THIRD", 3.0)
    monkeypatch.setattr(np, "__version__", "0")
    found()


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
    assert pickle.loads(pickle.dumps(Patches().look())) == {}
