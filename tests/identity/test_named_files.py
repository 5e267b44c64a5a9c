"""Files that code reads by names: in the working directory, beside the code, and in folders that values name."""

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from warmstore.identity import identify

Load = Callable[..., ModuleType]


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Load]:
    """Imports a text as a module of a package of the program, in whose folder there are files."""

    def load(text: str, name: str = "code") -> ModuleType:
        package = tmp_path / "own"
        package.mkdir(exist_ok=True)
        (package / "__init__.py").touch()
        (package / f"{name}.py").write_text(text)
        (package / "data").mkdir(exist_ok=True)
        for file in ("v.txt", f"{name}.json", "data/w.txt"):
            (package / file).write_text("1")
        importlib.invalidate_caches()
        return importlib.import_module(f"own.{name}")

    monkeypatch.syspath_prepend(tmp_path)
    yield load
    for name in [name for name in sys.modules if name.partition(".")[0] == "own"]:
        del sys.modules[name]


HERE = "from pathlib import Path\nHERE = Path(__file__).parent\n"
BESIDE = {
    "a global": HERE + "N = 'v.txt'\ndef step(): return (HERE / N).read_text()",
    "a default": HERE + "def step(n='v.txt'): return (HERE / n).read_text()",
    "an item of a dict": HERE + "N = {'a': 'v.txt'}\ndef step(): return (HERE / N['a']).read_text()",
    "an argument of a helper": HERE + "def read(n): return (HERE / n).read_text()\ndef step(): return read('v.txt')",
    "an attribute of a class": HERE
    + "class C:\n    n = 'v.txt'\n    def get(self): return (HERE / self.n).read_text()\nc = C()\n"
    "def step(): return c.get()",
    "a folder of a helper": "from pathlib import Path\ndef here(): return Path(__file__).parent\n"
    "def step(): return (here() / 'v.txt').read_text()",
    "a folder in an attribute": "from pathlib import Path\nclass C:\n"
    "    def __init__(self): self.root = str(Path(__file__).parent)\n"
    "    def get(self): return Path(self.root + '/v.txt').read_text()\nc = C()\ndef step(): return c.get()",
    "a folder in a folder": HERE + "def step(): return (HERE / 'data' / 'w.txt').read_text()",
    "a suffix": "from pathlib import Path\ndef step(): return Path(__file__).with_suffix('.json').read_text()",
    "a spec": "from pathlib import Path\ndef step(): return (Path(__spec__.origin).parent / 'v.txt').read_text()",
    "the file of a module": "import own\nfrom pathlib import Path\n"
    "def step(): return Path(own.__file__).with_name('v.txt').read_text()",
    "the path of a package": "import own\nfrom pathlib import Path\n"
    "def step(): return Path(own.__path__[0], 'v.txt').read_text()",
    "files": "from importlib import resources\ndef step(): return (resources.files(__package__) / 'v.txt').read_text()",
    "files of a module": "import own\nfrom importlib.resources import files\n"
    "def step(): return files(own).joinpath('v.txt').read_text()",
    "get_data": "import pkgutil\ndef step(): return pkgutil.get_data('own', 'v.txt').decode()",
}


@pytest.mark.parametrize("name", BESIDE)
def test_a_file_beside_the_code_counts(name: str, load: Load) -> None:
    module = load(BESIDE[name])
    before, result = identify(module.step), module.step()
    assert identify(module.step).digest == before.digest
    for file in ("v.txt", "code.json", "data/w.txt"):
        (Path(module.__file__).parent / file).write_text("22")
    after = identify(module.step)
    assert module.step() != result
    assert after.digest != before.digest
    assert not after.unknown


READERS = {
    "a library's function": "import linecache\ndef step(): return linecache.getline('a.txt', 1)",
    "a helper": "def read(p): return open(p).read()\ndef step(): return read('a.txt')",
    "a method": "class C:\n    def read(self, p): return open(p).read()\nc = C()\ndef step(): return c.read('a.txt')",
    "an item of a dict": "def read(p): return open(p).read()\n"
    "def step():\n    d = {'a': 'a.txt'}\n    return read(d['a'])",
}


@pytest.mark.parametrize("name", READERS)
def test_a_file_in_the_working_directory_counts(
    name: str, load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.txt").write_text("1")
    step: Any = load(READERS[name]).step
    before = identify(step)
    Path("a.txt").write_text("22")
    assert identify(step).digest != before.digest


def test_a_file_that_is_only_written_does_not_count(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    module = load(
        "def save(a, path): pass\ndef load(path): pass\n"
        "def step(x): save(x, 'a.txt')\n"
        "def nested(x): save(load('a.txt'), 'b.txt')\n"
        "def log(x): open('a.txt', mode='a', encoding='utf-8').write(x)\n"
        "def both(x):\n    save(x, 'a.txt')\n    return load('a.txt')\n"
    )
    before = [identify(step).digest for step in (module.step, module.log, module.nested, module.both)]
    Path("a.txt").write_text("1")
    after = [identify(step).digest for step in (module.step, module.log, module.nested, module.both)]
    assert [old == new for old, new in zip(before, after, strict=True)] == [True, True, False, False]


def test_the_name_of_the_file_of_the_code_counts(load: Load) -> None:
    text = "import os\ndef step(): return os.path.basename(__file__)"
    assert identify(load(text, "one").step).digest != identify(load(text, "two").step).digest


def test_a_moved_checkout_is_the_same(load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = load(BESIDE["a global"])
    before = identify(module.step).digest
    folder = tmp_path / "moved"
    folder.mkdir()
    (tmp_path / "own").rename(folder / "own")
    for name in [name for name in sys.modules if name.partition(".")[0] == "own"]:
        del sys.modules[name]
    monkeypatch.syspath_prepend(folder)
    importlib.invalidate_caches()
    assert identify(importlib.import_module("own.code").step).digest == before


@pytest.mark.parametrize("code", ["import os\ndef step(): return os.getcwd()", HERE + "def step(): return Path.cwd()"])
def test_the_working_directory_counts_where_code_asks_for_it(
    code: str, load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = load(code).step
    before = identify(step)
    monkeypatch.chdir(tmp_path / "own")
    assert before.digest != identify(step).digest
