"""The public names, and what importing them costs."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import warmstore as ws


def test_the_list_is_sorted_and_every_name_is_there() -> None:
    assert ws.__all__ == sorted(ws.__all__)
    assert len(set(ws.__all__)) == len(ws.__all__)
    for name in ws.__all__:
        assert getattr(ws, name) is not None
    assert dir(ws) == ws.__all__


def test_nothing_public_is_missing_from_the_list() -> None:
    modules = {"TYPE_CHECKING", "Any"}
    named = {
        name
        for name, value in vars(ws).items()
        if not name.startswith("_") and getattr(value, "__module__", "").startswith("warmstore.")
    }
    assert named - modules <= set(ws.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Stroe'"):
        _ = ws.Stroe  # type: ignore[attr-defined]


def _loaded_by(code: str) -> set[str]:
    """The modules, other than Python's own, that a fresh interpreter loads for some code."""
    code = f"import sys\nbefore = set(sys.modules)\n{code}\nprint(*(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return {name for name in done.stdout.split() if name.partition(".")[0] not in sys.stdlib_module_names}


def test_import_loads_errors_and_no_other_package() -> None:
    assert _loaded_by("import warmstore") == {"warmstore", "warmstore.errors", "warmstore.extras"}


def test_stores_leave_heavy_modules_alone() -> None:
    loaded = _loaded_by("import warmstore; warmstore.RecordStore")
    assert "pyarrow" in loaded
    assert not loaded & {"torch", "scipy", "pandas", "polars", "matplotlib", "jax", "rich", "typer"}


def test_help_of_every_command_loads_only_what_prints_it() -> None:
    code = """
import contextlib, io, typer.main
from warmstore.cli import app

def helps(command, *words):
    with contextlib.redirect_stdout(io.StringIO()) as text:
        command.main([*words, "--help"], prog_name="warmstore", standalone_mode=False)
    assert "Usage: " in text.getvalue(), words
    return 1 + sum(helps(command, *words, name) for name in names_below(command, words))

def names_below(command, words):
    for word in words:
        command = command.commands[word]
    return getattr(command, "commands", ())

assert helps(typer.main.get_command(app)) > 20
"""
    loaded = _loaded_by(code)
    assert "typer" in loaded
    assert not loaded & {"numpy", "pyarrow", "torch", "tqdm", "psutil", "pandas", "xxhash", "zstandard", "jax"}


_WITHOUT = """
import importlib, inspect, sys
sys.modules.update(dict.fromkeys(sys.argv[1:]))  # as if they were not installed
import warmstore as ws
from warmstore import *
members = dict(inspect.getmembers(ws))
assert all(hasattr(ws, name) and name in members for name in ws.__all__)
"""


def run_without(packages: str, code: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", _WITHOUT + code, *packages.split()]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_what_needs_an_extra_can_be_imported_and_names_it_when_used() -> None:
    code = """
def error_of(function):
    try:
        function()
    except ws.NotInstalled as error:
        return str(error)
named = "warmstore.CachedModule needs torch: pip install 'warmstore[torch]'"
assert error_of(lambda: ws.CachedModule(None, None)) == named
assert error_of(lambda: CachedModule.anything) == named
assert error_of(lambda: type("Mine", (ws.CachedModule,), {})) == named
assert not isinstance(3, ws.CachedModule)
assert error_of(lambda: ws.compile_cache.init()).endswith("needs blake3: pip install 'warmstore[compile]'")
assert error_of(lambda: ws.RecordStore.open("s3://bucket/store")).endswith("pip install 'warmstore[remote]'")
assert error_of(lambda: ws.Pipeline([1]).step(abs).plan(memory="1MB")).endswith("pip install 'warmstore[torch]'")
"""
    done = run_without("torch blake3 filelock platformdirs obstore scipy matplotlib jax", code)
    assert done.returncode == 0, done.stderr


def test_commands_name_an_extra_in_one_line() -> None:
    done = run_without(
        "torch blake3", "from warmstore.cli import app\nsys.argv = ['warmstore', 'compiled', 'stats']\napp()"
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "Error: warmstore compiled needs blake3: pip install 'warmstore[compile]'\n"


def test_a_package_of_warmstores_own_that_is_missing_is_shown_as_it_is() -> None:
    done = run_without("xxhash", "")
    assert "ModuleNotFoundError: import of xxhash halted" in done.stderr


def test_the_reference_has_every_public_name_once() -> None:
    page = (Path(__file__).parent.parent / "docs/reference.md").read_text()
    listed = re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)
    assert sorted(listed) == sorted(ws.__all__)
    assert all(text.strip() for text in re.findall(r"^\| `[\w.]+` \|(.*)\|$", page, re.MULTILINE))
