"""Where code comes from: Python, an installed distribution by version and recorded hashes, or the program."""

import base64
import hashlib
import importlib
import itertools
import os
import shutil
import subprocess
import sys
import sysconfig
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from warmstore.identity import identify, origin

CODE = "def scale(x):\n    return x * 2\ndef shift(x):\n    return x + 1\n"
PROGRAM = "from my_package import helpers\ndef step(x):\n    return helpers.shift(helpers.scale(x))\n"


def forget_modules() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] in ("my_package", "my_program")]:
        del sys.modules[name]
    importlib.invalidate_caches()


def forget() -> None:
    """Also what is known of all files, as a new process: it takes seconds."""
    forget_modules()
    for cached in (origin._origin, origin._listed, origin._record, origin._without_record, origin._edited):
        cached.cache_clear()


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """Write a package, and what an installer writes beside it; give the step of a program that calls it.

    Each is in a folder of its own: 1, 2, and so on.
    """
    count = itertools.count(1)

    def install(
        folder: str = "packages",
        version: str = "1.0",
        code: str = CODE,
        recorded: str | None = None,
        listed: bool = True,
    ) -> Any:
        root = tmp_path / str(next(count))
        place = root / folder
        package, info = place / "my_package", place / f"other_name-{version}.dist-info"
        for path, text in (
            (package / "__init__.py", ""),
            (package / "helpers.py", code),
            (root / "program" / "my_program.py", PROGRAM),
        ):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        if listed:
            digest = base64.urlsafe_b64encode(hashlib.sha256(code.encode()).digest()).decode().rstrip("=")
            lines = f"my_package/helpers.py,sha256={recorded or digest},{len(code)}\nmy_package/__init__.py,,\n"
            info.mkdir(exist_ok=True)
            (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: other-name\nVersion: {version}\n")
            (info / "RECORD").write_text(f"{lines}../../bin/tool,sha256=abc,9\nmy_package/x.pyc,,\n")
        monkeypatch.syspath_prepend(str(place))
        monkeypatch.syspath_prepend(str(root / "program"))
        monkeypatch.setattr(sys, "dont_write_bytecode", True)
        forget_modules()
        return importlib.import_module("my_program").step

    yield install
    forget_modules()


def test_a_version_or_recorded_hashes_are_other_code(install: Callable[..., Any]) -> None:
    before = identify(install())
    assert any(place.startswith("version of other_name") for place in before.facts)
    assert identify(install()).digest == before.digest
    assert identify(install(folder="elsewhere")).digest == before.digest  # `pip install --target`
    after = identify(install(version="1.1"))
    assert "version of other_name was" in before.difference(after)
    assert identify(install(recorded="bbbb")).digest != before.digest


def test_installed_code_is_not_followed(install: Callable[..., Any]) -> None:
    """What a library holds while a program runs, caches and lists of devices, is another in every process."""
    facts = identify(install()).facts
    assert not any("constants" in text for place, text in facts.items() if "my_package" in place)


def test_an_installed_file_that_was_edited_counts(install: Callable[..., Any], tmp_path: Path) -> None:
    before = identify(install())
    file = tmp_path / "1" / "packages" / "my_package" / "helpers.py"
    forget()
    file.write_text(CODE.replace("x * 2", "x * 3"))
    state = file.stat()
    os.utime(file, ns=(state.st_atime_ns, state.st_mtime_ns + 10**10))
    edited = identify(importlib.import_module("my_program").step)
    assert edited.digest != before.digest
    forget()
    file.write_text(CODE)
    os.utime(file, ns=(state.st_atime_ns, state.st_mtime_ns + 2 * 10**10))  # touched, and the same
    assert identify(importlib.import_module("my_program").step).digest == before.digest


@pytest.mark.slow
def test_an_edit_counts_where_the_clock_was_ahead_at_the_installation(
    install: Callable[..., Any], tmp_path: Path
) -> None:
    """The edited file is older than its record, which lies in the future. A file that nobody edited changes nothing."""
    before = identify(install())
    forget()
    info = tmp_path / "1" / "packages" / "other_name-1.0.dist-info" / "RECORD"
    ahead = info.stat().st_mtime_ns + 10**9 * 86400 * 365
    os.utime(info, ns=(ahead, ahead))
    assert identify(importlib.import_module("my_program").step).digest == before.digest
    forget()
    (tmp_path / "1" / "packages" / "my_package" / "helpers.py").write_text(CODE.replace("x * 2", "x * 3"))
    assert identify(importlib.import_module("my_program").step).digest != before.digest


@pytest.mark.parametrize("folder", ["packages", "site-packages"])
def test_what_no_record_lists_is_the_program(install: Callable[..., Any], folder: str) -> None:
    """Also in a folder called site-packages: names of folders decide nothing."""
    before = identify(install(folder=folder, listed=False))
    assert identify(install(folder=folder, listed=False)).digest == before.digest
    after = identify(install(folder=folder, listed=False, code=CODE.replace("x * 2", "x * 3")))
    assert before.difference(after) == "the code of `my_package.helpers.scale` was edited: its constants were 2, are 3"


def test_a_module_that_a_distributor_adds_to_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Debian has `_distutils_system_mod` in the standard library. It patches `distutils`, and is no part of a program.

    It counts by its content. What administrators customize there is a part of every program.
    """
    monkeypatch.setattr(origin, "_stdlib", lambda: (str(tmp_path),))
    found = {}
    for name, text in (("_system_mod", "A = 1"), ("_system_mod", "A = 2"), ("sitecustomize", "")):
        file = tmp_path / f"{name}.py"
        file.write_text(text)
        module = types.ModuleType(name)
        module.__file__ = str(file)
        forget()
        found[name, text] = origin.origin_of(module)
    forget()
    one, two, customized = found.values()
    assert one.kind == two.kind == "installed"
    assert one.text != two.text
    assert customized.is_program


def test_a_module_named_as_one_of_pythons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    kept = sys.modules.pop("this", None)
    found = []
    for number in (1, 1, 2):
        (tmp_path / "this.py").write_text(
            f"def helper(x):\n    return x + {number}\ndef step(x):\n    return helper(x)\n"
        )
        sys.modules.pop("this", None)
        importlib.invalidate_caches()
        found.append(identify(importlib.import_module("this").step).digest)
    sys.modules.pop("this", None)
    if kept is not None:
        sys.modules["this"] = kept
    assert found[0] == found[1] != found[2]


def test_a_module_that_a_library_of_c_has_made() -> None:
    """Its name says another folder than that of the file."""
    torch = pytest.importorskip("torch")
    for module in (torch._C, torch._C._distributed_c10d):
        assert (origin.origin_of(module).kind, origin.origin_of(module).name) == ("installed", "torch")


EXTENSION = """
#include <Python.h>
static PyObject *f(PyObject *self, PyObject *args) { return PyLong_FromLong(VALUE); }
static PyMethodDef functions[] = {{"f", f, METH_NOARGS, ""}, {0}};
static PyMethodDef methods[] = {{"g", f, METH_NOARGS, ""}, {0}};
static PyType_Slot slots[] = {{Py_tp_methods, methods}, {0}};
static PyType_Spec kind = {"my_extension.C", sizeof(PyObject), 0, Py_TPFLAGS_DEFAULT, slots};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "my_extension", 0, -1, functions};
PyMODINIT_FUNC PyInit_my_extension(void) {
    PyObject *made = PyModule_Create(&module);
    PyModule_AddObject(made, "C", PyType_FromSpec(&kind));
    return made;
}
"""


@pytest.fixture(scope="module")
def extensions(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Folders with a compiled module of the program, before and after an edit of a constant."""
    include = sysconfig.get_paths()["include"]
    if not Path(include, "Python.h").exists() or shutil.which("cc") is None:
        pytest.skip("there is no C compiler, or Python's headers are missing")
    folders = []
    for value in (3, 4):
        folder = tmp_path_factory.mktemp(f"gives{value}")
        source = folder / "my_extension.c"
        source.write_text(EXTENSION)
        flags = ["-shared", "-fPIC", f"-I{include}", f"-DVALUE={value}"]
        subprocess.run(["cc", *flags, source, "-o", folder / "my_extension.so"], check=True)
        folders.append(folder)
    return folders


USES = (
    "import my_extension\ndef step():\n    return my_extension.f()\n",
    "from my_extension import f\ndef step():\n    return f()\n",
    "def step():\n    from my_extension import f\n    return f()\n",
    "import my_extension\nTABLE = {'f': my_extension.f}\ndef step():\n    return TABLE['f']()\n",
    "from my_extension import C\ndef step():\n    return C().g()\n",
    "from my_extension import C\ndef step(g=C.g):\n    return g(C())\n",
)


def test_an_extension_module_of_the_program_counts_by_its_content(extensions: list[Path], tmp_path: Path) -> None:
    for number, program in enumerate(USES):
        (tmp_path / f"my_program{number}.py").write_text(program)
    code = (
        "import sys\nfrom importlib import import_module\nfrom warmstore.identity import identify\n"
        "sys.path += sys.argv[1:]\n"
        f"steps = [import_module(f'my_program{{number}}').step for number in range({len(USES)})]\n"
        "print(*[f'{step()} {identify(step).require().digest}' for step in steps], sep='\\n')"
    )
    before, after = (
        subprocess.run(
            [sys.executable, "-c", code, folder, tmp_path], check=True, capture_output=True, text=True
        ).stdout.splitlines()
        for folder in extensions
    )
    assert len(before) == len(USES)
    for one, other in zip(before, after, strict=True):
        assert one.startswith("3 ")
        assert other.startswith("4 ")
        assert one[2:] != other[2:]
