"""Installed packages count by what was installed, the program by its code."""

import importlib
import sys

import pytest

from warmstore.features import fingerprint
from warmstore.features.installed import installation_of

MODEL = """
from torch import nn
from my_package import helpers
from my_package.helpers import scale
class Model(nn.Module):
    def forward(self, x): return helpers.shift(scale(x))
"""
HELPERS = "def scale(x): return x * 2\ndef shift(x): return x + 1\n"


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Write a package with a model to a folder, and what an installer writes beside it; import the model."""

    def forget():
        for name in [name for name in sys.modules if name.partition(".")[0] in ("my_package", "my_program")]:
            del sys.modules[name]
        installation_of.cache_clear()
        importlib.invalidate_caches()

    def install(folder="site-packages", version="1.0", helpers=HELPERS, recorded="aaaa", metadata=True):
        place = tmp_path / folder
        package, info = place / "my_package", place / "other_name-1.dist-info"
        for path, text in (
            (package / "__init__.py", ""),
            (package / "model.py", MODEL),
            (package / "helpers.py", helpers),
            (info / "METADATA", f"Metadata-Version: 2.1\nName: other-name\nVersion: {version}\n"),
            (info / "RECORD", f"my_package/helpers.py,sha256={recorded},9\nmy_package/__init__.py,,\nx.pyc,,\n"),
        ):
            if metadata or path.parent != info:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
        monkeypatch.syspath_prepend(str(place))
        monkeypatch.setattr(sys, "dont_write_bytecode", True)
        forget()
        return importlib.import_module("my_package.model").Model()

    yield install
    forget()


def test_other_files_or_another_version_are_other_code(install):
    before = fingerprint.code(install())
    assert fingerprint.code(install()) == before
    assert fingerprint.code(install(recorded="bbbb")) != before
    assert fingerprint.code(install(version="1.1")) != before


def test_it_is_not_followed_into_its_code(install):
    """What a library holds while a program runs, caches and lists of devices, is other in every process."""
    before = fingerprint.code(install())
    assert fingerprint.code(install(helpers=HELPERS.replace("x * 2", "x * int(2)"))) == before


@pytest.mark.parametrize("options", [{"folder": "mine"}, {"metadata": False}])
def test_elsewhere_or_not_by_an_installer_it_is_the_program(install, options):
    before = fingerprint.code(install(**options))
    assert installation_of("my_package") == ""
    assert fingerprint.code(install(**options, helpers=HELPERS.replace("x * 2", "x * 3"))) != before
    assert fingerprint.code(install(**options, helpers=HELPERS.replace("x + 1", "x + 2"))) != before


def test_what_a_program_uses_of_it(install, monkeypatch, tmp_path):
    def program():
        monkeypatch.syspath_prepend(str(tmp_path))
        sys.modules.pop("my_program", None)
        return importlib.import_module("my_program").Model()

    install()
    (tmp_path / "my_program.py").write_text(MODEL)
    before = fingerprint.code(program())
    install(recorded="bbbb")
    assert fingerprint.code(program()) != before
    install()
    (tmp_path / "my_program.py").write_text(MODEL.replace("shift(scale(x))", "shift(x)"))
    assert fingerprint.code(program()) != before
