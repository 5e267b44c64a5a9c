"""The public names, and what importing them costs."""

import subprocess
import sys

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


@pytest.mark.parametrize("module", ["torch", "scipy", "polars", "matplotlib", "jax"])
def test_import_leaves_heavy_modules_alone(module: str) -> None:
    code = f"import sys, warmstore; warmstore.RecordStore; sys.exit({module!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
