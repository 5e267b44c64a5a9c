"""The doctor says what is wrong with a machine, and changes nothing."""

import errno
import importlib.machinery
import importlib.util
import os
import pwd
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.inventory.making import compiled

from warmstore import _native
from warmstore.inventory import machine_checks
from warmstore.inventory.machine_checks import check_machine


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("WARMSTORE_CACHE_DIR", str(tmp_path / "compiled"))


def said() -> dict[str, tuple[bool, str]]:
    return {finding.name: (finding.well, finding.said) for finding in check_machine()}


def test_a_machine_is_described(tmp_path: Path) -> None:
    found = said()
    assert "Python 3." in found["warmstore"][1]
    assert "pyarrow " in found["packages"][1]
    assert "free" in found["disk of this folder"][1]
    assert found["compile cache"] == (True, f"there is none in {tmp_path / 'compiled'}")
    assert not (tmp_path / "compiled").exists()
    assert not (tmp_path / "state").exists()


def test_a_compile_cache_is_examined_too(tmp_path: Path) -> None:
    compiled(tmp_path / "compiled")
    assert said()["compile cache: artifacts"][1].startswith("3, of which")


def test_a_user_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(user: int) -> None:
        raise KeyError(user)

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    for name in ("HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME", "WARMSTORE_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    found = said()
    for name in ("disk of home", "registry", "compile cache"):
        assert not found[name][0]
        assert "home directory" in found[name][1]


def test_folders_that_this_user_may_not_look_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed, stat = tmp_path / "closed", os.stat

    def refuse(path: Any, *args: Any, **options: Any) -> Any:
        if not isinstance(path, int) and closed in Path(os.fsdecode(path)).parents:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return stat(path, *args, **options)

    closed.mkdir(0o500)
    monkeypatch.setenv("XDG_STATE_HOME", str(closed / "state"))
    monkeypatch.setenv("WARMSTORE_CACHE_DIR", str(closed / "compiled"))
    monkeypatch.setattr(os, "stat", refuse)
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != closed)
    found = said()
    assert found["registry"] == (False, f"{closed / 'state/warmstore/folders'}: 0 folders; {closed} cannot be written")
    assert str(closed / "compiled") in found["compile cache"][1]


@pytest.mark.parametrize("error", ["OSError", "ImportError"])
def test_torch_that_cannot_be_imported(error: str, tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text(f"raise {error}('libcublas.so.12: cannot open')")
    program = "from warmstore.inventory.machine_checks import check_machine\nfor one in check_machine(): print(one)"
    search = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": search},
        capture_output=True,
        text=True,
        check=True,
    )
    assert (
        "Finding(name='torch', well=False, said='it cannot be imported: libcublas.so.12: cannot open')" in done.stdout
    )
    assert "compile cache" in done.stdout


def test_the_libraries_of_cuda_are_not_dali(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nvidia = importlib.util.module_from_spec(importlib.machinery.ModuleSpec("nvidia", None, is_package=True))
    nvidia.__path__ = [str(tmp_path)]  # where torch has put nvidia.cublas and others
    monkeypatch.setitem(sys.modules, "nvidia", nvidia)
    monkeypatch.delitem(sys.modules, "nvidia.dali", raising=False)
    assert said()["extra dali"][1] == "nvidia.dali not installed: pip install 'warmstore[dali]'"


def test_trouble_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_native, "is_compiled", False)
    monkeypatch.setattr(machine_checks.shutil, "disk_usage", lambda path: SimpleNamespace(free=10**6, total=64 * 10**6))
    monkeypatch.setattr(machine_checks.importlib.util, "find_spec", lambda name: None)
    (tmp_path / "state").touch()
    found = said()
    assert not found["compiled part"][0]
    assert not found["disk of home"][0]
    assert found["/dev/shm"] == (
        False, "64.0 MB, 1.0 MB free; loader workers and memory tiers need more (docker run --shm-size)"
    )  # fmt: skip
    assert "pip install 'warmstore[remote]'" in found["extra remote"][1]
    assert not found["registry"][0]
