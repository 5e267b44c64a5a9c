"""Any change that could change a value changes the key of its step; what cannot does not."""

import dataclasses
import importlib
import linecache
import os
import sys
import textwrap
from decimal import Decimal, localcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests import warm
from tests.pipeline.making import described
from tests.slow import thinned
from torch.utils.data import ConcatDataset, Subset

import warmstore as ws
from warmstore.identity.samples.sample_hashes import mixed
from warmstore.identity.samples.sample_identities import identify_samples
from warmstore.pipeline.step_identities import difference_of, key_of
from warmstore.pipeline.steps import Step


def key(function: Any, **arguments: Any) -> str:
    return key_of([described(Step(function, arguments, name="step"))])


def name_of_source(source: Any) -> str:
    return identify_samples(source).name


def identities(source: Any) -> Any:
    """One value for each sample."""
    return np.array([int(first) << 64 | int(second) for first, second in identify_samples(source).each.tolist()])


PROGRAM = """
    import functools
    import re
    import numpy as np

    SCALE = 2.0
    TABLE = {"a": 1}
    MEMO = {}

    class Table:
        def __init__(self, size):
            self.size = size

        def __call__(self, x):
            return helper(x) + self.size

        def method(self, x):
            return x + self.size

    def decorated(function):
        @functools.wraps(function)
        def around(x):
            return function(x) + 1
        return around

    def helper(x):
        return x * SCALE

    @functools.lru_cache
    def cached(x):
        return x + 3

    def step(x, by=SCALE):
        if x not in MEMO:
            MEMO[x] = helper(x) + TABLE["a"] + cached(x) + by
        return MEMO[x]

    @decorated
    def wrapped(x):
        return x

    def late(x):
        import program_helpers
        return program_helpers.shift(x)

    SIZES = {("small", 1): 3}
    WIDTH = 96

    def rounded(x):
        return x // 1

    def counted(method):
        @functools.wraps(method)
        def around(self, x):
            return method(self, x) + 9
        return around

    class Base:
        def start(self, x):
            return x + 11

    class Child(Base):
        width = WIDTH
        outside = rounded
        seen = 0

        def __call__(self, x):
            Child.seen += 1
            return self.start(x) + self.width + self.plus(x)

        @counted
        def plus(self, x):
            return x

    def by_pair(x):
        return SIZES[x]

    def outer(k):
        return lambda x: x + k

    by_lambda = lambda x: x + SCALE
    by_closure = outer(5)
    by_partial = functools.partial(step, by=4)
    by_object = Table(5)
    by_method = Table(6).method
    by_child = Child()
    by_pattern = re.compile("a+").findall
    by_library = np.vectorize(lambda x: Child()(x))
    by_named_partial = functools.update_wrapper(functools.partial(step, by=8), step)
"""
HELPERS = """
    def shift(x):
        return x + 1
"""
NAMES = ["step", "wrapped", "late", "by_lambda", "by_closure", "by_partial", "by_object", "by_method"]
NAMES += ["by_pair", "by_child", "by_pattern", "by_library", "by_named_partial"]
OF_STEP = ["step", "by_partial", "by_named_partial"]
OF_CHILD = ["by_child", "by_library"]
EDITS = [
    ("SCALE = 2.0", "SCALE = 3.0", [*OF_STEP, "by_lambda", "by_object"]),
    ('{"a": 1}', '{"a": 2}', OF_STEP),
    ("return x * SCALE", "return x / SCALE", [*OF_STEP, "by_object"]),
    ("return x + 3", "return x + 4", OF_STEP),
    ("return function(x) + 1", "return function(x) + 2", ["wrapped"]),
    ("return lambda x: x + k", "return lambda x: x - k", ["by_closure"]),
    ("outer(5)", "outer(6)", ["by_closure"]),
    ("by=4", "by=5", ["by_partial"]),
    ("Table(5)", "Table(7)", ["by_object"]),
    ("Table(6)", "Table(7)", ["by_method"]),
    ("return x + self.size", "return x - self.size", ["by_method"]),
    ("def step(x, by=SCALE):", "def step(x, by=SCALE):  # a comment", []),
    ("MEMO = {}", "MEMO = {1: 2}", OF_STEP),
    ('("small", 1)', '("small", 2)', ["by_pair"]),
    ("1): 3}", "1): 4}", ["by_pair"]),
    ("return x + 11", "return x + 12", OF_CHILD),
    ("WIDTH = 96", "WIDTH = 97", OF_CHILD),
    ("return x // 1", "return x // 2", OF_CHILD),
    ("method(self, x) + 9", "method(self, x) + 8", OF_CHILD),
    ("seen = 0", "seen = 0  # samples", []),
    ('"a+"', '"a*"', ["by_pattern"]),
    ("by=8", "by=9", ["by_named_partial"]),
]


@pytest.mark.parametrize(("old", "new", "changed"), thinned(18, EDITS))
def test_edits(program: Any, old: str, new: str, changed: list[str]) -> None:
    program(HELPERS, "program_helpers")
    assert old in PROGRAM
    before = program(PROGRAM)
    first = {name: key(getattr(before, name)) for name in NAMES}
    for name in ("step", "by_child"):  # they fill what they remember, in our calls
        pipe = ws.Pipeline([1]).step(getattr(before, name), name="step")
        known = pipe.identities.descriptions()
        assert pipe[0]
        assert key_of(known) == first[name]
        assert not pipe.identities.changed(known)
        assert ws.Pipeline([1]).step(getattr(before, name), name="step").identities.descriptions() == known
    again = program(PROGRAM)
    assert {name: key(getattr(again, name)) for name in NAMES} == first
    after = program(PROGRAM.replace(old, new))
    assert {name for name in NAMES if key(getattr(after, name)) != first[name]} == set(changed)


def test_what_is_imported_when_it_runs(program: Any) -> None:
    program(HELPERS, "program_helpers")
    before = key(program(PROGRAM).late)
    program(HELPERS.replace("x + 1", "x + 2"), "program_helpers")
    assert key(program(PROGRAM).late) != before


def test_a_module_named_as_one_of_pythons(program: Any) -> None:
    code = "def helper(x):\n    return x + 1\ndef step(x):\n    return helper(x)\n"
    before = key(program(code, "this").step)
    assert key(program(code, "this").step) == before
    assert key(program(code.replace("x + 1", "x + 2"), "this").step) != before


def test_what_lies_in_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    package = tmp_path / "package_under_test"
    package.mkdir()
    sources = {
        "__init__": "",
        "deep": "def shift(x):\n    return x + 1\n",
        "relative": "def turn(x):\n    return x + 2\n",
        "steps": """
            import package_under_test.deep

            def by_dots(x):
                return package_under_test.deep.shift(x)

            def by_name(x):
                from .relative import turn
                return turn(x)

            def by_module(x):
                from . import relative
                return relative.turn(x)
        """,
    }

    def load(**edited: str) -> dict[str, str]:
        for name in [name for name in sys.modules if name.startswith("package_under_test")]:
            del sys.modules[name]
        for name, source in {**sources, **edited}.items():
            (package / f"{name}.py").write_text(textwrap.dedent(source))
        importlib.invalidate_caches()
        linecache.clearcache()
        steps = importlib.import_module("package_under_test.steps")
        return {name: key(getattr(steps, name)) for name in ("by_dots", "by_name", "by_module")}

    first = load()
    assert load() == first
    deep = load(deep="def shift(x):\n    return x + 3\n")
    assert {name for name in first if deep[name] != first[name]} == {"by_dots"}
    relative = load(relative="def turn(x):\n    return x + 3\n")
    assert {name for name in first if relative[name] != first[name]} == {"by_name", "by_module"}
    load()


def test_files_that_were_edited_while_the_program_runs(program: Any) -> None:
    """What runs is the code that was imported, and so are the samples: they must not be found under the new code."""
    module = program(PROGRAM)
    before = {name: key(getattr(module, name)) for name in ("step", "by_child")}
    path = Path(module.__file__)
    text = path.read_text()
    edited = text.replace("return x * SCALE", "return x - SCALE").replace("return x + 11", "return x - 11")
    path.write_text(edited)
    now = {name: key(getattr(module, name)) for name in before}
    path.write_text(text)
    after = program(edited)
    assert all(key(getattr(after, name)) not in (before[name], now[name]) for name in before)


@pytest.mark.slow
def test_objects_of_libraries_are_the_same_in_every_process() -> None:
    code = """
        import numpy as np, torch
        from tests.pipeline.functions import change
        from tests.pipeline.test_step_identities import key, name_of_source
        some = [torch.zeros(1000 * at) for at in range(3)]
        data = torch.utils.data.TensorDataset(torch.arange(10.0))
        layer = torch.nn.init.ones_(torch.nn.Linear(3, 3, bias=False).weight)
        print(name_of_source(data), name_of_source(torch.utils.data.Subset(data, [1])), key(torch.nn.ReLU(), x=layer))
        print(key(np.vectorize(change, excluded={"aa", "bb", "cc", "dd"})))
    """
    said = [
        warm.run(
            [sys.executable, "-c", textwrap.dedent(code)],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": str(at), "PYTHONPATH": os.pathsep.join([str(Path.cwd()), *sys.path])},
        ).stdout
        for at in range(2)
    ]
    assert said[0] == said[1]
    assert len(set(said[0].split())) == 4


def test_arguments_and_the_random_flag() -> None:
    def step(x: Any, **options: Any) -> Any:
        return x

    keys = [
        key(step),
        key(step, size=1),
        key(step, size=1.0),
        key(step, size=np.ones(2)),
        key(step, size=np.zeros(2)),
        key(step, size=[1, {"a": Path("b")}]),
        key(step, size=[1, {"a": Path("c")}]),
        key(step, how=np.add),
        key(step, how=np.subtract),
        key_of([described(Step(step, random=True, name="step"))]),
        key_of([described(Step(step, name="other"))]),
    ]
    assert len(set(keys)) == len(keys)
    assert key(step, size=np.zeros(2)) == keys[4]


def test_what_cannot_be_told_is_not_kept() -> None:
    def step(x: Any, of: Any = None) -> Any:
        return x, of

    pipe = ws.Pipeline([1, 2]).step(step, name="first").step(step, of=(one for one in "ab"), name="second")
    assert pipe.identities.keepable == 1
    assert "Nothing is kept after step 'first'" in pipe.identities.trouble
    assert "second(of)" in pipe.identities.trouble
    vouched = ws.Pipeline([1, 2]).step(step, of=(one for one in "ab"), version="1", name="second")
    assert vouched.identities.keepable == 1
    assert not vouched.identities.trouble
    left_out = ws.Pipeline([1, 2]).step(step, of=(one for one in "ab"), ignore=("second(of)",), name="second")
    assert left_out.identities.keepable == 1
    assert ws.Pipeline((one for one in "ab") and [(one for one in "ab")]).step(step).identities.keepable == -1


def test_differences_in_words() -> None:
    def one(x: Any, size: int = 0) -> Any:
        return x * size

    def other(x: Any, size: int = 0) -> Any:
        return x + size

    def said(before: Step, after: Step) -> str:
        return difference_of([described(before)], [described(after)])

    sized = Step(one, {"size": 1}, name="s")
    assert said(sized, Step(one, {"size": 2}, name="s")) == "step 's': `s(size)` was 1, is 2"
    assert "`s(size)` is gone, and was 1" in said(sized, Step(one, {}, name="s"))
    assert "test_differences_in_words" in said(Step(one, name="s"), Step(other, name="s"))
    assert said(Step(one, random=True, name="s"), Step(one, name="s")) == "step 's' is no longer random"
    assert said(Step(one, name="s"), Step(one, name="s")) == ""


def test_files_by_path_size_and_time(tmp_path: Path) -> None:
    paths = [tmp_path / str(at) for at in range(3)]
    for path in paths:
        path.write_bytes(b"abc")
    name, hashes = name_of_source(paths), identities(paths)
    assert len(set(hashes.tolist())) == 3
    assert identities(paths).tolist() == hashes.tolist()
    os.utime(paths[1], ns=(0, 12345))
    changed_name, changed = name_of_source(paths), identities(paths)
    assert changed_name == name
    assert (changed != hashes).tolist() == [False, True, False]
    paths[0].write_bytes(b"abcd")
    assert identities(paths)[0] != hashes[0]
    pairs = [(str(path), at) for at, path in enumerate(paths)]
    assert identities(pairs).tolist() != identities([(str(path), 0) for path in paths]).tolist()
    before = identities(pairs)
    os.utime(paths[2], ns=(0, 999))
    assert (identities(pairs) != before).tolist() == [False, False, True]
    dicts = [{"path": str(path)} for path in paths]
    before = identities(dicts)
    paths[2].unlink()
    assert (identities(dicts) != before).tolist() == [False, False, True]


def test_values_by_their_content(tmp_path: Path) -> None:
    array = np.arange(12.0).reshape(4, 3)
    sources = [
        array,
        array + 1,
        array.astype(np.float32),
        list(array),
        ["a", "b"],
        ["a", "c"],
        [b"a", b"b"],
        range(4),
        range(5),
        ragged(0),
        ragged(1),
        np.array(["a", "b"]),
    ]
    names = [name_of_source(source) for source in sources]
    assert len(set(names)) == len(names)
    assert name_of_source(array.copy()) == names[0]
    for source in sources:
        assert identities(source).shape == (len(source),)


@pytest.mark.parametrize("make", [Decimal, lambda text: (Decimal(text), 0)])
def test_the_decimal_context_counts_for_samples_that_are_decimals(make: Any) -> None:
    samples = [make("1"), make("2")]
    with localcontext(prec=28):
        found = identify_samples(samples)
        again = identify_samples([*samples, make("3")]).each[:2]
        assert found.look is not None
        assert (mixed(*found.look(samples)) == found.each).all()
    with localcontext(prec=5):
        other = identify_samples(samples).each
    assert found.each.tolist() == again.tolist()
    assert (found.each != other).any(axis=1).all()


def test_stores_by_what_was_done_to_them(tmp_path: Path) -> None:
    store = ws.RecordStore.create(tmp_path / "store", {"x": ws.Array("int64"), "y": ws.Array("int64")})
    store.extend({"x": [1, 2, 3], "y": [4, 5, 6]})
    store.flush()
    name, hashes = name_of_source(store), identities(store)
    assert name_of_source(store["x"]) != name_of_source(store["y"]) != name
    store.append({"x": 7, "y": 8})
    store.flush()
    assert name_of_source(store) == name
    assert identities(store)[:3].tolist() == hashes.tolist()
    store.update(0, {"x": 9})
    assert identities(store)[0] != hashes[0]
    store.close()


def ragged(middle: int) -> np.ndarray[Any, Any]:
    """Arrays that a text of them would shorten."""
    found = np.empty(2, object)
    found[:] = [np.zeros(3), np.array([0] * 2000 + [middle] + [0] * 2000)]
    return found


@dataclasses.dataclass
class Item:
    path: Path
    label: int


def columns(paths: list[Path]) -> Any:
    import pandas as pd

    return Folder(pd.DataFrame({"path": [str(path) for path in paths], "label": range(len(paths))}))


@pytest.mark.parametrize("one_by_one", [True, False])
def test_files_wherever_they_are_named(tmp_path: Path, one_by_one: bool) -> None:
    paths = [tmp_path / str(at) for at in range(3)]
    for path in paths:
        path.write_bytes(b"abc")
    texts = list(map(str, paths))
    sources: list[Any]
    if one_by_one:
        sources = [
            np.array(texts),
            np.array(paths),
            [Item(path, 3) for path in paths],
            [{"a": [path]} for path in paths],
        ]
    else:
        sources = [
            ws.Pipeline({"path": texts, "label": [1, 2, 3]}).source,
            ws.Pipeline({"pair": list(zip(texts, range(3), strict=True))}).source,
            Subset(Folder(paths), [0, 1, 2]),
            ConcatDataset([Subset(Folder(list(zip(paths, range(3), strict=True))), [0, 1, 2])]),
            columns(paths),
        ]
    before = [(name_of_source(source), identities(source)) for source in sources]
    os.utime(paths[1], ns=(0, 12345))
    for source, (name, hashes) in zip(sources, before, strict=True):
        assert name_of_source(source) == name, source
        assert (identities(source) != hashes).tolist() == ([False, True, False] if one_by_one else [True] * 3), source


def test_stores_and_mapped_files_are_not_read(tmp_path: Path) -> None:
    with ws.RecordStore.create(tmp_path / "store", {"x": ws.Array("int64")}) as store:
        store.extend({"x": [1, 2, 3]})
        store.flush()
        both = ws.Pipeline({"x": store["x"], "y": [1, 2, 3]}).source
        before = identities(both)
        store.update(0, {"x": 9})
        assert (identities(both) != before).all()
    np.save(tmp_path / "a.npy", np.zeros((3, 1 << 20)))
    array = np.load(tmp_path / "a.npy", mmap_mode="r")
    names = {name_of_source(one) for one in (array, array[:2], array.T, array.copy())}
    assert len(names) == 4
    assert name_of_source(np.load(tmp_path / "a.npy", mmap_mode="r")) in names
    before = identities(Folder(array))  # type: ignore[arg-type]
    file = np.load(tmp_path / "a.npy", mmap_mode="r+")
    file[0, 0] = 1
    file.flush()
    os.utime(tmp_path / "a.npy", ns=(0, 12345))
    assert (identities(Folder(array)) != before).all()  # type: ignore[arg-type]


class Folder:
    """A data set of files, as users write them."""

    def __init__(self, paths: list[Path]) -> None:
        self.paths = paths

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, at: int) -> bytes:
        return self.paths[at].read_bytes()


class Lazy(Folder):
    """One that opens a file when it is read, and says that this is nothing of its own."""

    file: Any = None

    def __getitem__(self, at: int) -> bytes:
        self.file = self.file or Path(__file__).open()  # noqa: SIM115
        return super().__getitem__(at)

    def __getstate__(self) -> dict[str, Any]:
        return {"paths": self.paths}


class Careless(Lazy):
    def __getstate__(self) -> dict[str, Any]:
        return vars(self)


def test_data_sets_that_open_files_when_they_are_read(tmp_path: Path) -> None:
    (tmp_path / "0").write_bytes(b"abc")
    lazy, other = Lazy([tmp_path / "0"]), Lazy([])
    before = name_of_source(lazy), identities(lazy).tolist()
    assert lazy[0] == b"abc"
    assert (name_of_source(lazy), identities(lazy).tolist()) == before
    assert name_of_source(other) != before[0]
    lazy.file.close()
    careless = Careless([tmp_path / "0"])
    assert careless[0] == b"abc"
    unknown = identify_samples(careless).identity.unknown
    assert list(unknown) == ["source.file"]
    careless.file.close()
    assert not identify_samples(careless, version="1").identity.unknown
    assert not identify_samples(careless, ignore=["source.file"]).identity.unknown


def test_data_sets_by_their_attributes_and_files(tmp_path: Path) -> None:
    paths = [tmp_path / str(at) for at in range(3)]
    for path in paths:
        path.write_bytes(b"abc")
    name, hashes = name_of_source(Folder(paths)), identities(Folder(paths))
    assert name_of_source(Folder(paths[:2])) != name
    os.utime(paths[1], ns=(0, 12345))
    assert name_of_source(Folder(paths)) == name
    assert (identities(Folder(paths)) != hashes).all()
    np.save(tmp_path / "a.npy", np.arange(3))
    mapped = ws.Pipeline(tmp_path / "a.npy").source
    before = identities(mapped)
    os.utime(tmp_path / "a.npy", ns=(0, 12345))
    assert identities(mapped)[0] != before[0]


def test_relative_paths_among_absolute_ones_count_with_their_folder(tmp_path, monkeypatch):
    found = []
    for folder in (tmp_path / "one", tmp_path / "other"):
        folder.mkdir()
        (folder / "a.txt").write_text("x")
        os.utime(folder / "a.txt", (5, 5))
        monkeypatch.chdir(folder)
        found.append(identities([*[f"{tmp_path}/one/a.txt"] * 20, "a.txt"]))
    assert (found[0][:20] == found[1][:20]).all()
    assert found[0][20] != found[1][20]


def test_files_that_samples_share_count_for_each(tmp_path):
    """Two samples with one object that names a file."""
    path = tmp_path / "shared.txt"
    path.write_text("x")
    shared = {"path": str(path)}
    samples = [{"n": 0, "of": shared}, {"n": 1, "of": shared}]
    before = identities(samples)
    path.write_text("xy")
    assert (identities(samples) != before).all()
