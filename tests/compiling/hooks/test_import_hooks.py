"""Actions on modules as they are imported."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from warmstore.compiling.hooks.import_hooks import Watcher
from warmstore.compiling.hooks.torch_hooks import TorchHooks, is_tested
from warmstore.compiling.scratch.compiler_files import is_whole_library, kind_of


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of a module that can be imported, and of which nothing is left afterwards."""
    (tmp_path / "watched_module.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "watched_module"
    sys.modules.pop("watched_module", None)


def double(module: ModuleType) -> None:
    module.value *= 2


def test_an_action_runs_right_after_the_import(module: str) -> None:
    watcher = Watcher()
    watcher.when_imported(module, double)
    imported = importlib.import_module(module)
    assert imported.value == 2
    assert imported.__loader__ is imported.__spec__.loader  # type: ignore[union-attr]
    assert type(imported.__loader__).__name__ == "SourceFileLoader"
    watcher.stop()
    assert watcher not in sys.meta_path


def test_or_now_if_it_is_imported_already(module: str) -> None:
    imported = importlib.import_module(module)
    Watcher().when_imported(module, double)
    assert imported.value == 2


def test_an_action_that_fails_is_logged_and_the_import_goes_on(module: str, caplog: pytest.LogCaptureFixture) -> None:
    watcher = Watcher()
    watcher.when_imported(module, lambda module: module.nothing)
    assert importlib.import_module(module).value == 1
    assert "has no hooks in watched_module" in caplog.text
    watcher.stop()


def test_functions_of_torch_that_look_other_than_expected_are_left_alone() -> None:
    def write(content: str) -> None: ...

    holder = SimpleNamespace(write=write, __name__="codecache")
    hooks = TorchHooks(SimpleNamespace())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="takes content; expected content extension"):
        hooks._replace(holder, "write", "content extension", lambda function: function)
    assert holder.write is write


def test_hooks_are_taken_away_again() -> None:
    class Holder:
        @staticmethod
        def still(key: str) -> str:
            return key

        @classmethod
        def classy(cls, key: str) -> str:
            return cls.__name__ + key

    before = dict(vars(Holder))
    hooks = TorchHooks(SimpleNamespace())  # type: ignore[arg-type]
    hooks._replace(Holder, "still", "key", lambda function, key: function(key) + "!")
    hooks._replace(Holder, "classy", "cls key", lambda function, cls, key: function(cls, key) + "?")
    assert (Holder.still("a"), Holder.classy("b")) == ("a!", "Holderb?")
    hooks.remove()
    assert vars(Holder) == before


@pytest.mark.parametrize(
    ("version", "tested"), [("2.13.0+cpu", True), ("2.130.0", False), ("2.4.1", False), (None, False)]
)
def test_tested_versions(version: str | None, tested: bool) -> None:
    assert is_tested(version) is tested


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("inductor/fxgraph/ab/fab/x", "fx_graph"),
        ("inductor/aotautograd/aab/x", "aot_autograd"),
        ("inductor/ab/cab.main.so", "cpp.so"),
        ("inductor/ab/cab.main.cpp", None),
        ("inductor/ab/cab.py", None),
        ("inductor/ab/cab.best_config", "autotune"),
        ("inductor/locks/cab.lock", None),
        ("inductor/fxgraph/ab/fab/.1.2.tmp", None),
        ("inductor/dynamo/code_state_job_0.pkl", "pgo"),
        ("triton/hash/kernel.ptx", "triton.ptx"),
        ("triton/hash/kernel.ttir", "triton.ttir"),
        ("triton/hash/kernel.json", "triton.cubin"),
        ("inductor/triton/0/hash/kernel.cubin", "triton.cubin"),
        ("jax/jit_f-0123-cache", "jax"),
        ("jax/jit_f-0123-atime", None),
    ],
)
def test_kinds_of_files(path: str, kind: str | None) -> None:
    assert kind_of(path) == kind


def test_libraries_that_were_cut_short_are_told_from_whole_ones() -> None:
    data = next(Path(importlib.__file__).parent.parent.glob("lib-dynload/*.so")).read_bytes()
    assert is_whole_library(data)
    for length in (0, 4, 63, len(data) // 2, len(data) - 1):
        assert not is_whole_library(data[:length])
