"""Values that differ in no element, and are others to who looks."""

import argparse
import copy
import hashlib
import io
import os
import sys
import types
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

import gin
import numpy as np
import pandas as pd
import pytest
import sklearn
import torch
import xarray
from sklearn.preprocessing import StandardScaler
from tests import warm
from tests.slow import thinned

from warmstore.identity import Versioned, identify, register
from warmstore.identity.identity import identity_of_walk, walk_over
from warmstore.identity.named_files import FEW
from warmstore.identity.object_state import is_made_in_python
from warmstore.identity.samples.sample_identities import identify_samples
from warmstore.identity.watch import Watch


@pytest.mark.parametrize(
    ("one", "other"),
    thinned(
        4,
        [
            (lambda: torch.tensor([1 + 2j]).conj().imag.resolve_neg(), lambda: torch.tensor([1 + 2j]).conj().imag),
            (lambda: torch.ones(2, 3), lambda: torch.ones(3, 2).T),
            (lambda: torch.ones(2), lambda: torch.ones(2, requires_grad=True)),
            (lambda: torch.zeros(1), lambda: -torch.zeros(1)),
            (lambda: np.ones((2, 3)), lambda: np.ones((3, 2)).T),
            (lambda: np.arange(3), lambda: np.repeat(np.arange(3), 2)[::2]),
            (lambda: [1, 2], lambda: (1, 2)),
            (lambda: [True], lambda: [1]),
            (lambda: {"a": 1, "b": 2}, lambda: {"b": 2, "a": 1}),
            (lambda: [[1]] * 2, lambda: [[1], [1]]),
            (
                lambda: (lambda array: [array, array[:2]])(np.zeros(3)),
                lambda: (lambda array: [array, array[1:]])(np.zeros(3)),
            ),
        ],
    ),
)
def test_values_that_are_alike(one: Callable[[], Any], other: Callable[[], Any]) -> None:
    assert identify(one()).digest == identify(one()).digest
    assert identify(one()).digest != identify(other()).digest


SCALARS = ["bool_", "int8", "uint8", "int64", "uint64", "float16", "float32", "float64", "complex64", "complex128"]


@pytest.mark.parametrize("legacy", [False, "1.25"])
def test_the_type_of_a_number_counts_however_numpy_prints_it(legacy: Any) -> None:
    """NumPy 1 prints `0.5` for numbers of all types."""
    numbers: list[Any] = [1, 1.0, True, complex(1), *(np.dtype(name).type(1) for name in SCALARS)]
    numbers += [np.float32(0.1), np.float64(0.1), np.float64(np.float32(0.1)), np.float32(0.0), np.float32(-0.0)]
    numbers += [np.datetime64("2020", unit) for unit in ("D", "ns")]
    numbers += [np.timedelta64(1, unit) for unit in ("D", "ns")] + [np.float64("nan"), np.longdouble(1)]
    before = [identify([number]).digest for number in numbers]
    with np.printoptions(legacy=legacy, precision=3):
        found = [identify([number]).digest for number in numbers]
    assert len(set(found)) == len(numbers)
    assert found == before


@gin.configurable  # type: ignore[untyped-decorator]
def bound(size: int = 1) -> int:
    return size


def bind(size: int) -> None:
    gin.clear_config()
    gin.parse_config(f"bound.size = {size}")


OPTIONS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any], Any]] = {
    "pandas": (
        lambda: pd.Series(["a"]).dtype,
        lambda option: pd.set_option("mode.string_storage", option),
        ("python", "pyarrow"),
    ),
    "scikit-learn": (
        lambda: type(StandardScaler().fit_transform(pd.DataFrame({"a": [0.0, 1.0]}))),
        lambda option: sklearn.set_config(transform_output=option),
        ("default", "pandas"),
    ),
    "xarray": (
        lambda: xarray.DataArray([1.0], attrs={"unit": "m"}).mean().attrs,
        lambda option: xarray.set_options(keep_attrs=option),
        (False, True),
    ),
    "gin": (lambda: bound(), bind, (2, 3)),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_options_of_libraries_count(name: str) -> None:
    """Of those that only the code of the library reads, a result with others was found."""
    use, choose, options = OPTIONS[name]
    watch, found = Watch(), []
    try:
        for option in (*options, options[0]):
            choose(option)
            assert watch.has_moved() == bool(found)
            watch = Watch()
            found.append((use(), identity_of_walk(walk_over(use, watch=watch, is_called_here=True)).digest))
            assert not watch.has_moved()
    finally:
        choose(options[0])
    assert found[0] == found[2]
    assert found[0][0] != found[1][0]
    assert found[0][1] != found[1][1]


MATRIX = torch.eye(2)


def switch(holder: Any, name: str, on: Any) -> Callable[[bool], None]:
    before = getattr(holder, name)
    return lambda is_on: setattr(holder, name, on if is_on else before)


SWITCHES: dict[str, Callable[[bool], Any]] = {
    "precision of matmul": switch(torch.backends.mkldnn.matmul, "fp32_precision", "bf16"),
    "precision of convolutions": switch(torch.backends.cudnn.conv, "fp32_precision", "ieee"),
    "reduced precision": switch(torch.backends.cuda.matmul, "allow_bf16_reduced_precision_reduction", False),
    "benchmark": switch(torch.backends.cudnn, "benchmark", True),
    "quantised engine": switch(torch.backends.quantized, "engine", "qnnpack"),
    "einsum": switch(torch.backends.opt_einsum, "enabled", False),
    "new memory": switch(torch.utils.deterministic, "fill_uninitialized_memory", False),
    "denormals": torch.set_flush_denormal,
    "no fast path": lambda is_on: torch.backends.mha.set_fastpath_enabled(not is_on),
    "no flash attention": lambda is_on: torch.backends.cuda.enable_flash_sdp(not is_on),
    "conversion": torch.__future__.set_overwrite_module_params_on_conversion,
    "printing": lambda is_on: torch.set_printoptions(precision=2 if is_on else 4),
}


@pytest.mark.parametrize("name", ["formatter", "override_repr"])
def test_functions_that_print_arrays_count_by_what_they_do(name: str) -> None:
    def shown() -> str:
        return str(np.array([1 / 3]))

    def digest(function: Any) -> str:
        with np.printoptions(**{name: {"float": function} if name == "formatter" else function}):
            found = identify(shown)
        assert not found.unknown
        return found.digest

    def digits(count: int) -> Any:
        return f"{{:.{count}f}}".format  # of another str in each call

    def in_units(unit: str) -> Any:
        return lambda number: f"{number} {unit}"

    for make, one, other in ((digits, 3, 4), (in_units, "m", "s")):
        kept = make(one), make(one)
        assert digest(kept[0]) == digest(kept[1]) != digest(make(other))
    watch = Watch()
    walk_over(shown, watch=watch, is_called_here=True)
    with np.printoptions(**{name: {"float": str} if name == "formatter" else str}):
        assert watch.has_moved()
    assert not watch.has_moved()


def product() -> Any:
    return MATRIX @ MATRIX


@pytest.mark.parametrize("name", SWITCHES)
def test_switches_of_torch_count_where_a_tensor_is_read(name: str) -> None:
    watch = Watch()
    before = identity_of_walk(walk_over(product, watch=watch, is_called_here=True))
    assert not watch.has_moved()
    SWITCHES[name](True)
    try:
        assert watch.has_moved()
        after = identity_of_walk(walk_over(product))
    finally:
        SWITCHES[name](False)
    assert not after.unknown
    assert after.digest != before.digest
    assert not watch.has_moved()


class Handle:
    """Something of C that says nothing of itself."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __reduce__(self) -> Any:
        raise TypeError("no")


def test_a_rule_for_a_type_of_others() -> None:
    unknown = identify([Handle(1)]).unknown
    assert list(unknown) == ["value[0]"]
    register(Handle, lambda handle: handle.number)
    try:
        assert not identify([Handle(1)]).unknown
        assert identify([Handle(1)]).digest == identify([Handle(1)]).digest != identify([Handle(2)]).digest
    finally:
        from warmstore.identity import kinds

        del kinds.registered[Handle]


def test_what_is_versioned_keeps_its_name() -> None:
    one, other = identify(Versioned("store", 1)), identify(Versioned("store", 2))
    assert one.difference(other) == "`value.<state>` was 1, is 2"


def test_the_places_of_the_unknown_stay_in_the_key() -> None:
    generators = [(one for one in "a"), (one for one in "b")]
    one, two = identify(generators[:1], version="1"), identify(generators, version="1")
    assert not one.unknown
    assert one.digest != two.digest
    assert one.digest != identify(generators[:1], version="2").digest
    assert one.digest == identify([(one for one in "c")], version="1").digest


def test_places_can_be_left_out_as_they_are_shown() -> None:
    value = {"a": [1, (one for one in "a")]}
    (place,) = identify(value).unknown
    assert not identify(value, ignore=[place]).unknown
    assert identify(value, ignore=[place]).digest == identify({"a": [1, 5]}, ignore=[place]).digest


@pytest.mark.parametrize("made", [lambda: hashlib.sha1(b"salt"), lambda: zlib.decompressobj(zdict=b"salt")])
def test_objects_of_c_tell_nothing(made: Callable[[], Any]) -> None:
    """Their classes are made while Python starts, as by a class statement."""
    held = made()
    assert list(identify(held).unknown) == ["value"]
    assert identify(lambda: held.copy()).unknown


class Slotted:
    __slots__ = ("__dict__", "number")


class Beneath(Slotted):
    other = 1
    a: int
    b: int


def test_which_classes_python_made() -> None:
    for cls in (Handle, Slotted, Beneath, type("Bare", (int,), {}), torch.nn.Linear):
        assert is_made_in_python(cls)
    for cls in (int, type(hashlib.sha1()), type(zlib.decompressobj()), torch.Generator, np.ndarray):
        assert not is_made_in_python(cls)


@pytest.mark.parametrize("kind", [argparse.Namespace, types.SimpleNamespace])
def test_of_settings_those_count_that_are_read(kind: Callable[..., Any]) -> None:
    settings = kind(scale=2, name="a")

    def step(x: Any) -> Any:
        return x * settings.scale

    def printed(x: Any) -> Any:
        return x, str(settings)

    before, all_before = identify(step), identify(printed)
    settings.name = "b"
    assert identify(step).digest == before.digest
    assert identify(printed).digest != all_before.digest
    settings.scale = 3
    assert before.difference(identify(step)).endswith("settings>.scale` was 2, is 3")


def test_the_order_of_attributes_counts_where_code_may_see_it() -> None:
    settings, turned = Beneath(), Beneath()
    settings.a, settings.b = 1, 2
    turned.b, turned.a = 2, 1

    def total(x: Any) -> Any:
        return x.a + x.b

    def listed(x: Any, show: Callable[[Any], Any] = vars) -> Any:
        return list(show(x))

    assert identify(partial(total, turned)).digest == identify(partial(total, settings)).digest
    assert identify(partial(listed, turned)).digest != identify(partial(listed, settings)).digest
    assert identify([turned] * 80).digest != identify([settings] * 80).digest
    assert identify([copy.deepcopy(settings)] * 80).digest == identify([settings] * 80).digest
    assert identify_samples([turned]).name != identify_samples([settings]).name
    assert identify_samples([(turned, torch.ones(1))]).name != identify_samples([(settings, torch.ones(1))]).name


def test_the_order_of_the_methods_of_a_data_set_does_not_count() -> None:
    methods = {"__len__": lambda self: 2, "__getitem__": lambda self, at: at, "scale": lambda self: 3}
    sources = [type("Data", (), dict(order))() for order in (methods.items(), reversed(methods.items()))]
    assert len({identify_samples(source).name for source in sources}) == 1


def test_a_progress_bar_counts_by_its_items_and_by_what_code_names() -> None:
    bar = pytest.importorskip("tqdm").tqdm(total=5, file=io.StringIO())

    def shown(x: Any) -> Any:
        bar.update()
        bar.set_postfix(x=x)
        return x

    def counted(x: Any) -> Any:
        return x + bar.n

    def measured(x: Any) -> Any:
        return x + len(bar)

    functions = (shown, counted, measured)
    before = [identify(function).require() for function in functions]
    shown(2)
    moved = [known.difference(identify(function)) for function, known in zip(functions, before, strict=True)]
    assert [change.rpartition(".<bar>")[2] for change in moved] == ["", ".n` was 0, is 1", ""]
    bar.total = 6
    assert identify(shown).digest == before[0].digest
    assert identify(measured).digest != before[2].digest


PADDED = np.dtype([("a", "i1"), ("b", "f8"), ("c", "g"), ("d", "i1", (3,))], align=True)


@pytest.mark.parametrize(
    ("dtype", "counted"),
    [
        (PADDED, [0, *range(8, 16), *range(16, 26), *range(32, 35)]),
        (np.dtype([("x", [("a", "i1"), ("b", "f8")], (2,))], align=True), [0, *range(8, 17), *range(24, 32)]),
        (np.dtype("g"), range(10)),
        (np.dtype("G"), [*range(10), *range(16, 26)]),
        (np.dtype(">g"), range(6, 16)),
    ],
)
def test_padding_does_not_count(dtype: np.dtype[Any], counted: Iterable[int]) -> None:
    if np.finfo(np.longdouble).nmant != 63:
        pytest.skip("long doubles have no padding here")
    one = np.zeros(3, dtype)
    for at in range(dtype.itemsize):
        other = one.copy()
        other.view(np.uint8).reshape(3, -1)[1, at] = 1
        is_counted = at in counted
        for part in (slice(None), 1):
            assert (identify(one[part]).digest != identify(other[part]).digest) == is_counted
        assert (identify_samples(one).name != identify_samples(other).name) == is_counted
    assert identify_samples(np.zeros((0, 2), dtype)).each.shape == (0, 2)


ABSTRACT = """
import abc, sys, types

class Number(abc.ABC):
    pass

for name in "ABCDEF":
    module = sys.modules["module_" + name] = types.ModuleType("module_" + name)
    module.found = Number.register(type(name, (), {"__module__": module.__name__}))

def step(x):
    return isinstance(x, Number)
"""


def test_classes_that_were_registered_as_others_in_any_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weak references are in the order of addresses."""
    for name in "ABCDEF":
        monkeypatch.setitem(sys.modules, f"module_{name}", sys)
    spaces: list[dict[str, Any]] = []
    digests = set()
    for _ in range(9):
        spaces.append({"__name__": "abstract"})
        exec(ABSTRACT, spaces[-1])
        digests.add(identify(spaces[-1]["step"]).require().digest)
    assert len(digests) == 1


GRAPH = """
import random

class Node:
    def __init__(self, number):
        self.number = number
        self.neighbours = set()

def graph(seed, nodes=7, neighbours=2):
    random_ = random.Random(seed)
    found = [Node(number) for number in range(nodes)]
    for node in found:
        node.neighbours.update(random_.sample(found, neighbours))
    return found
"""


def test_a_graph_that_only_sets_hold_together() -> None:
    namespace: dict[str, Any] = {}
    exec(GRAPH, namespace)
    same = [namespace["graph"](1) for _ in range(9)]
    assert len({identify(graph[0]).digest for graph in same}) == 1
    graphs = [namespace["graph"](seed) for seed in range(9)]
    assert len({identify(graph[0]).require().digest for graph in graphs}) == len(graphs)
    nodes = graphs[0]
    before = identify(nodes[0])
    max(nodes[0].neighbours, key=lambda node: node.number).number += 1
    assert identify(nodes[0]).digest != before.digest


def test_a_graph_of_sets_is_refused_where_the_search_would_take_ages() -> None:
    namespace: dict[str, Any] = {}
    exec(GRAPH, namespace)
    first = namespace["graph"](0, 40, 40)[0]
    assert list(identify(first).unknown) == ["value.neighbours"]


CONFIGURED = """
import pydantic

class Config(pydantic.BaseModel):
    scale: float = {scale}

    @pydantic.field_validator("scale")
    @classmethod
    def check(cls, scale):
        return scale + {more}

def step(x):
    return x * Config(scale=2).scale
"""


def test_models_of_pydantic_in_other_processes() -> None:
    """They hold addresses of their classes."""
    pytest.importorskip("pydantic")
    first, again, edited = (digest_elsewhere(CONFIGURED.format(scale=1.5, more=more)) for more in (1, 1, 2))
    assert first == again != edited


def test_functions_of_jax() -> None:
    jax = pytest.importorskip("jax")

    def made(scale: float) -> Any:
        return jax.jit(lambda x: x * scale)

    def step(function: Any) -> Callable[[Any], Any]:
        return lambda x: function(x)

    one, again, other = (identify(step(made(scale))) for scale in (2.0, 2.0, 3.0))
    assert not one.unknown
    assert one.digest == again.digest != other.digest
    for name, value in {"jax_numpy_dtype_promotion": "strict", "jax_random_seed_offset": 5}.items():
        before = getattr(jax.config, name)
        jax.config.update(name, value)
        try:
            assert "settings of jax" in one.difference(identify(step(made(2.0))))
        finally:
            jax.config.update(name, before)


def digest_elsewhere(program: str) -> str:
    """The digest of the program's `step` in a fresh interpreter."""
    ends = "\nfrom warmstore.identity import identify\nprint(identify(step).require().digest)"
    done = warm.run([sys.executable, "-c", program + ends], capture_output=True, text=True, check=True)
    return done.stdout


def _made(library: str, make: Callable[[Any, list[str]], Any]) -> Callable[[list[str]], Any]:
    return lambda paths: make(pytest.importorskip(library), paths)


def structured(paths: list[str]) -> np.ndarray[Any, Any]:
    found = np.zeros(len(paths), [("of", [("path", "U200"), ("label", "i4")])])
    found["of"]["path"] = paths
    return found


def mapped(paths: list[str]) -> np.ndarray[Any, Any]:
    array = np.array(paths, "S")
    file = Path(f"{paths[0]}.array")
    array.tofile(file)
    return np.memmap(file, array.dtype, mode="r")


NAMING_FILES: dict[str, Callable[[list[str]], Any]] = {
    "str": lambda paths: paths[0],
    "str of NumPy": lambda paths: np.str_(paths[0]),
    "bytes": lambda paths: paths[0].encode(),
    "bytes of NumPy": lambda paths: np.bytes_(paths[0].encode()),
    "Path": lambda paths: Path(paths[0]),
    "list": lambda paths: paths,
    "list of NumPy's": lambda paths: list(map(np.str_, paths)),
    "tuples": lambda paths: [(path, 0) for path in map(np.str_, paths)],
    "array": np.array,
    "array of bytes": lambda paths: np.array(paths, "S"),
    "array of objects": lambda paths: np.array(paths, object),
    "array in a large dict": lambda paths: {"paths": np.array(paths), **dict.fromkeys(range(100))},
    "PurePath": lambda paths: PurePosixPath(paths[0]),
    "keys": lambda paths: dict.fromkeys(paths),
    "keys of a defaultdict": lambda paths: defaultdict(int, dict.fromkeys(paths, 0)),
    "sets": lambda paths: {1, *paths},
    "structured array": structured,
    "element of a structured array": lambda paths: structured(paths)[0],
    "elements of a record array": lambda paths: list(structured(paths).view(np.recarray)),
    "record array": lambda paths: structured(paths).view(np.recarray),
    "masked array": np.ma.array,
    "array of characters": np.char.array,
    "memory map": mapped,
    "series of pandas": _made("pandas", lambda pandas, paths: pandas.Series(paths)),
    "frame of pandas": _made("pandas", lambda pandas, paths: pandas.DataFrame({"path": map(Path, paths)})),
    "lists of pandas": _made("pandas", lambda pandas, paths: pandas.Series([[path] for path in paths])),
    "series of polars": _made("polars", lambda polars, paths: polars.Series(paths)),
    "frame of polars": _made("polars", lambda polars, paths: polars.DataFrame({"path": paths})),
    "lists of polars": _made("polars", lambda polars, paths: polars.Series([[path] for path in paths])),
    "structures of polars": _made("polars", lambda polars, paths: polars.Series([{"path": path} for path in paths])),
    "bytes of polars": _made("polars", lambda polars, paths: polars.Series(list(map(str.encode, paths)))),
    "Arrow": _made("pyarrow", lambda arrow, paths: arrow.array(paths)),
    "bytes of Arrow": _made("pyarrow", lambda arrow, paths: arrow.array([b"\0", *map(str.encode, paths)])),
    "views of Arrow": _made("pyarrow", lambda arrow, paths: arrow.array(paths, arrow.string_view())),
    "dictionary of Arrow": _made("pyarrow", lambda arrow, paths: arrow.array(paths).dictionary_encode()),
    "lists of Arrow": _made("pyarrow", lambda arrow, paths: arrow.array([[path] for path in paths])),
    "maps of Arrow": _made(
        "pyarrow",
        lambda arrow, paths: arrow.array([[(path, 1)] for path in paths], arrow.map_(arrow.string(), arrow.int8())),
    ),
    "structures of Arrow": _made("pyarrow", lambda arrow, paths: arrow.array([{"path": path} for path in paths])),
    "runs of Arrow": _made(
        "pyarrow", lambda arrow, paths: arrow.RunEndEncodedArray.from_arrays(range(1, len(paths) + 1), paths)
    ),
    "union of Arrow": _made(
        "pyarrow",
        lambda arrow, paths: arrow.UnionArray.from_sparse(
            arrow.array([0] * len(paths), arrow.int8()), [arrow.array(paths)]
        ),
    ),
    "batch of Arrow": _made("pyarrow", lambda arrow, paths: arrow.record_batch({"path": paths})),
    "Hugging Face": _made("datasets", lambda datasets, paths: datasets.Dataset.from_dict({"path": paths})),
    "structures of Hugging Face": _made(
        "datasets", lambda datasets, paths: datasets.Dataset.from_dict({"of": [{"path": path} for path in paths]})
    ),
}


@pytest.mark.parametrize("form", NAMING_FILES)
@pytest.mark.parametrize("count", thinned(2, [2, 100]))
def test_text_that_names_files_counts_with_them(form: str, count: int, tmp_path: Path) -> None:
    files = [tmp_path / f"{number}.txt" for number in range(count)]
    for file in files:
        file.write_text("a")
    value = NAMING_FILES[form](list(map(str, files)))
    before = identify([value]).require().digest
    assert identify([value]).require().digest == before
    files[0].write_text("ab")
    assert identify([value]).require().digest != before


@pytest.mark.parametrize(
    "code", ["open({path!r})", "open({bytes!r})", "[open(path) for path, label in (({path!r}, 1), ('', 2))]"]
)
def test_constants_of_code_that_name_files_count_with_them(code: str, tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("a")
    function = eval("lambda: " + code.format(path=str(path), bytes=str(path).encode()))
    before = identify(function).require().digest
    path.write_text("ab")
    assert identify(function).require().digest != before


@pytest.mark.parametrize(
    "code",
    [
        "open(os.path.expanduser('~/a.txt')).read()",
        "open(os.path.expanduser(NAMES[-1])).read()",
        "open(os.path.join(os.path.expanduser(FOLDER), 'a.txt')).read()",
    ],
)
@pytest.mark.parametrize("count", [1, 2 * FEW])
def test_names_below_the_home_folder_count_with_their_files(
    code: str, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "folder").mkdir()
    names = [*(f"word {number}" for number in range(1, count)), "~/a.txt"]
    function = eval(f"lambda: {code}", {"os": os, "NAMES": names, "FOLDER": "~/folder"})
    digests = set()
    for text in ("a", "ab"):
        for folder in (tmp_path, tmp_path / "folder"):
            (folder / "a.txt").write_text(text)
        digests.add(identify(function).require().digest)
    assert len(digests) == 2


def test_attributes_with_dots_in_their_names_have_places_of_their_own() -> None:
    def options(one: int, other: int) -> argparse.Namespace:
        return argparse.Namespace(**{"a.b": one, "a": argparse.Namespace(b=other), "c[0]": one, "c": [other]})

    digests = {identify([options(*values)]).digest for values in [(1, 1), (1, 2), (2, 1), (2, 2)]}
    assert len(digests) == 4


def test_names_without_a_suffix_among_many_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = [f"word {number}" for number in range(2 * FEW)]
    Path(words[70]).write_text("a")
    before = identify([words[:100]]).digest, identify([words]).digest
    Path(words[70]).write_text("ab")
    assert identify([words[:100]]).digest != before[0]
    assert identify([words]).digest != before[1]


def test_the_order_of_a_set_does_not_count(tmp_path: Path) -> None:
    files = [str(tmp_path / f"{number}.txt") for number in range(200)]
    for file in files:
        Path(file).write_text("a")
    assert list({*files}) != list({*files[::-1]})
    assert identify([{*files}]).digest == identify([{*files[::-1]}]).digest


def test_files_of_a_lazy_frame_are_out_of_reach() -> None:
    polars = pytest.importorskip("polars")
    assert identify([polars.LazyFrame({"a": [1]})]).unknown


ARROW: dict[str, Callable[[Any, bool], Any]] = {
    "metadata": lambda arrow, other: arrow.table({"a": [1]}, metadata={"unit": "m" * 100 + "ab"[other]}),
    "columns of one name": lambda arrow, other: arrow.table([[3 if other else 1], [2]], names=["a", "a"]),
    "chunks": lambda arrow, other: arrow.chunked_array([[1, 2]] if other else [[1], [2]]),
    "array": lambda arrow, other: arrow.array([1]) if other else arrow.chunked_array([[1]]),
}


@pytest.mark.parametrize("form", ARROW)
def test_all_of_a_table_counts(form: str) -> None:
    arrow = pytest.importorskip("pyarrow")
    one, again, other = (identify([ARROW[form](arrow, number)]).digest for number in (False, False, True))
    assert one == again != other


class Measured(np.ndarray[Any, Any]):
    """An array with a unit, as those of astropy."""


def measured(unit: str) -> np.ndarray[Any, Any]:
    array = np.ones(2).view(Measured)
    array._unit = unit
    return array


def of_field(unit: str) -> np.ndarray[Any, Any]:
    return np.zeros(1, [("length", np.dtype("f4", metadata={"unit": unit}))])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (lambda: measured("m"), lambda: measured("s")),
        (lambda: of_field("m"), lambda: of_field("s")),
        (lambda: of_field("m")[0], lambda: of_field("s")[0]),
        (lambda: np.ma.array([1, 2]), lambda: np.ma.array([1, 2], mask=[0, 0])),
        (lambda: np.ma.array([1, 2]), lambda: np.ma.array([1, 2], hard_mask=True)),
    ],
)
def test_all_of_an_array_counts(one: Callable[[], Any], other: Callable[[], Any]) -> None:
    before = identify([one()]).require().digest
    assert identify([one()]).digest == before != identify([other()]).digest


def labelled(name: str, folder: str, others: str = "") -> list[str]:
    return [Path(each, "labels.txt").read_text() for each in (folder, others)] + [Path(folder, name).read_text()]


@pytest.mark.parametrize("edited", ["one", "other"])
def test_files_that_code_names_in_folders_of_arguments_count(edited: str, tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "labels.txt").write_text("a")
    bound = partial(labelled, folder=str(tmp_path / "one"), others=str(tmp_path / "other"))
    before = identify(bound).require().digest
    (tmp_path / edited / "unread.txt").write_text("a")
    assert identify(bound).require().digest == before
    (tmp_path / edited / "labels.txt").write_text("ab")
    assert identify(bound).require().digest != before
