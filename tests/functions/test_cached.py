"""Which calls of a cached function have the same result, and which do not."""

import ctypes
import dataclasses
import functools
import inspect
import numbers
import operator
import os
import random
import sys
import threading
import types
from collections import deque, namedtuple
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal, localcontext
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pytest
import torch
from tests.slow import thinned
from torch import overrides
from torch.autograd import forward_ad
from torch.utils import _python_dispatch, flop_counter

import warmstore as ws
from warmstore.identity.named_files import FileStamps


def scaled(x: Any, by: float = 2.0, *, offset: int = 0) -> Any:
    """A documented function."""
    CALLS.append(x)
    return x * by + offset


CALLS: list[Any] = []
SCALE = 3


@dataclasses.dataclass
class Box:
    size: int
    pixels: Any = None


Pair = namedtuple("Pair", "first second")


def grad_of(module: Any, of: str = "weight") -> list[float]:
    x = torch.ones(1, 2, requires_grad=True)
    found = torch.autograd.grad(module(x).sum(), x if of == "x" else module.weight)[0]
    return [round(number, 4) for number in found.flatten().tolist()]


def tangent_of(f: Any, x: Any) -> Any:
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(f(forward_ad.make_dual(x, x))).tangent


@pytest.fixture
def calls() -> list[Any]:
    CALLS.clear()
    return CALLS


@pytest.fixture
def keep(tmp_path: Path) -> Any:
    made = []

    def keep(function: Any, *args: Any, **options: Any) -> Any:
        made.append(ws.cached(tmp_path / "cache", *args, **options)(function))
        return made[-1]

    yield keep
    for function in made:
        getattr(function, "__func__", function).cache.close()


class TestArguments:
    def test_other_code_and_defaults_have_other_parameters(self, keep: Any) -> None:
        def less(a: float, b: float = 7, *, times: float = 1) -> float:
            return (a - b) * times

        def reordered(b: float, a: float = 7, *, times: float = 1) -> float:
            return (a - b) * times

        f = keep(less)
        assert f(9) == 2
        less.__defaults__ = (8,)
        assert (f(9), f(9, 7)) == (1, 2)
        less.__kwdefaults__["times"] = 2
        assert (f(9), f(9, times=1)) == (2, 1)
        less.__code__ = reordered.__code__
        assert (f(9, 5), f(a=9, b=5)) == (-8, 8)
        of_partial = functools.partial(scaled, by=2)
        g = keep(of_partial)
        assert g(3) == 6
        of_partial.keywords["by"] = 3
        assert (g(3), g(3, by=2)) == (9, 6)

    def test_however_a_call_passes_them_they_are_the_same(self, keep: Any, calls: list[Any]) -> None:
        f = keep(scaled)
        assert [f(1), f(1, 2.0), f(x=1), f(by=2.0, x=1), f(1, offset=0)] == [2.0] * 5
        assert calls == [1]

    @pytest.mark.parametrize(
        ("one", "other"),
        thinned(
            4,
            [
                (1, 1.0),
                (1, True),
                (0.0, -0.0),
                (1, np.int64(1)),
                (np.float64(1.0), 1.0),
                (np.float32(1.0), np.float64(1.0)),
                (np.arange(3), np.arange(3.0)),
                (np.zeros((2, 3)), np.zeros((3, 2))),
                (np.arange(6).reshape(2, 3), np.asfortranarray(np.arange(6).reshape(2, 3))),
                (torch.zeros(2), np.zeros(2, np.float32)),
                (torch.zeros(2), torch.zeros(2, requires_grad=True)),
            ],
        ),
    )
    def test_values_of_different_types_differ(self, keep: Any, calls: list[Any], one: Any, other: Any) -> None:
        f = keep(scaled)
        with torch.no_grad():
            for value in (one, other, one, other):
                f(value)
        assert len(calls) == 2

    @pytest.mark.parametrize(
        ("one", "other"),
        thinned(
            2,
            [
                ("a", b"a"),
                ([1, 2], (1, 2)),
                ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
                ({1, 2}, frozenset((1, 2))),
                ([["a"], "b"], ["a", ["b"]]),
                (["a, b"], ["a", "b"]),
                ([torch.zeros(2)], [torch.ones(2)]),
                ({"x": torch.zeros(2)}, {"y": torch.zeros(2)}),
                ((torch.zeros(2), "a"), [torch.zeros(2), "a"]),
                (Box(1), Box(2)),
                (Box(1, np.zeros(2)), Box(1, np.ones(2))),
                ([Box(1), torch.zeros(1)], [Box(2), torch.zeros(1)]),
                (Pair(1, 2), (1, 2)),
                (Path("/a"), "/a"),
                (None, 0),
                (len, sum),
            ],
        ),
    )
    def test_containers_and_objects_count_by_their_content(self, keep: Any, one: Any, other: Any) -> None:
        seen = []

        def what(x: Any) -> str:
            seen.append(1)
            return repr(x)

        f = keep(what)
        results = [f(value) for value in (one, other, one, other)]
        assert len(seen) == 2
        assert results[:2] == results[2:]

    @pytest.mark.parametrize(
        ("hang", "read"),
        [
            (lambda x, n: setattr(x, "grad", torch.full((2,), n)), lambda x: float(x.grad.sum())),
            (lambda x, n: setattr(x, "tag", n), lambda x: x.tag),
            (lambda x, n: setattr(x, "_tag", n), lambda x: x._tag),
            (lambda x, n: x.register_hook(lambda g: g * n), lambda x: torch.autograd.grad(x.sum(), x)[0].tolist()),
        ],
        ids=["gradient", "attribute", "attribute with an underscore", "hook"],
    )
    def test_tensors_count_with_what_hangs_on_them(self, keep: Any, hang: Any, read: Callable[[Any], Any]) -> None:
        f = keep(read)
        for number in (1.0, 2.0):
            x = torch.ones(2, requires_grad=True)
            hang(x, number)
            assert f(x) == read(x)
            hang(x, number + 5.0)
            assert f(x) == read(x)

    @pytest.mark.parametrize(
        ("change", "read"),
        [
            (lambda m: m.weight.requires_grad_(False), lambda m: sum(p.requires_grad for p in m.parameters())),
            (lambda m: setattr(m.weight, "grad", torch.ones(2, 2)), lambda m: m.weight.grad is None),
            (lambda m: m.weight.register_hook(lambda g: g * 2), lambda m: grad_of(m)),
            (lambda m: m.register_full_backward_hook(lambda m, i, o: (i[0] * 2,)), lambda m: grad_of(m, "x")),
            (lambda m: setattr(m.weight, "rate", 5), lambda m: getattr(m.weight, "rate", 1)),
            (lambda m: m._non_persistent_buffers_set.add("b"), lambda m: list(m.state_dict())),
        ],
        ids=["requires_grad", "gradient", "hook", "hook of a module", "attribute", "not saved"],
    )
    def test_training_state_of_modules_counts_where_it_is_read(
        self, keep: Any, change: Callable[[Any], Any], read: Callable[[Any], Any]
    ) -> None:
        module, other = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
        for each in (module, other):
            each.register_buffer("b", torch.ones(1))
        of_argument, of_global = keep(read), keep(lambda: read(other))
        first = of_argument(module), of_global()
        change(module)
        change(other)
        assert (of_argument(module), of_global()) == (read(module), read(other)) != first

    def test_hooks_of_the_backward_pass_of_every_module_count_where_code_goes_backward(self, keep: Any) -> None:
        module = torch.nn.Linear(2, 2)
        f = keep(lambda: grad_of(module, "x"))
        first = f()
        hook = torch.nn.modules.module.register_module_full_backward_hook(lambda m, i, o: (i[0] * 2,))
        try:
            assert f() == grad_of(module, "x") != first
        finally:
            hook.remove()
        assert f() == first

    def test_what_nothing_reads_does_not_count(self, keep: Any, calls: list[Any]) -> None:
        module = torch.nn.Linear(2, 2)

        def total(x: float) -> float:
            calls.append(x)
            return float(module(torch.full((2,), x)).detach().sum())

        f = keep(total)
        f(1.0)
        module.requires_grad_(False)
        module.weight.grad = torch.ones(2, 2)
        f(1.0)
        assert len(calls) == 1

    def test_requires_grad_counts_for_transformers(self, keep: Any) -> None:
        """Without gradients of parameters, they take a path with other rounding."""
        layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
        identity = keep(lambda x: layer(x).detach()).cache._identity
        before = identity.recorded({}).refresh(exactly=True).digest
        layer.requires_grad_(False)
        assert identity.recorded({}).refresh(exactly=True).digest != before

    def test_objects_count_under_whichever_keys_they_are(self, keep: Any) -> None:
        total = keep(lambda boxes: sum(box.size for box in boxes.values()))
        folder = "/data/experiments/one/folder/with/a/long/name/"
        assert total({f"{folder}a": Box(1), f"{folder}b": Box(2)}) == 3
        assert total({f"{folder}a": Box(100), f"{folder}b": Box(2)}) == 102

    @pytest.mark.parametrize("wrapped", [lambda value: value, lambda value: [value] * 20])
    def test_decimals_count_with_their_context(self, keep: Any, wrapped: Callable[[Any], Any]) -> None:
        third = keep(lambda values: str((values if isinstance(values, Decimal) else values[0]) / 3))
        assert third(wrapped(Decimal(1))) == "0." + 28 * "3"
        with localcontext(prec=5):
            assert third(wrapped(Decimal(1))) == "0.33333"

    @pytest.mark.parametrize(
        "named",
        [
            str,
            np.str_,
            lambda path: np.array([path]),
            lambda path: [np.array([path])],
            lambda path: np.array([(path, 1)], [("path", "U500"), ("number", "i4")]),
            lambda path: np.array([(path, 1)], [("path", "U500"), ("number", "i4")])[0],
        ],
    )
    def test_files_count_that_arguments_name(self, keep: Any, tmp_path: Path, named: Callable[[str], Any]) -> None:
        def read_text(path: Any) -> str:
            first = np.ravel(path)[0]
            return Path(first["path"] if isinstance(first, np.void) else str(first)).read_text()

        read = keep(read_text)
        file = tmp_path / "text"
        for text in ("a", "ab"):
            file.write_text(text)
            assert read(named(str(file))) == text

    @pytest.mark.parametrize(
        "held",
        thinned(
            3,
            [
                list,
                tuple,
                set,
                lambda paths: dict.fromkeys(paths, 1),
                lambda paths: Box(1, paths),
                lambda paths: np.array(paths),
                lambda paths: pytest.importorskip("pandas").DataFrame({"path": paths}),
            ],
        ),
    )
    @pytest.mark.parametrize("count", [2, 100])
    def test_files_count_that_a_container_names(self, keep: Any, tmp_path: Path, held: Any, count: int) -> None:
        paths = [str(tmp_path / f"file{at}") for at in range(count)]
        here, box = held(paths), Box(1, held(paths))
        read = keep(lambda: (str(type(here)), Path(paths[1]).read_text()))
        read_of = keep(lambda box: (str(type(box.pixels)), Path(paths[1]).read_text()))
        for text in ("a", "ab"):
            Path(paths[1]).write_text(text)
            assert read()[1] == text
            assert read_of(box)[1] == text

    @pytest.mark.parametrize("named", ["global", "constant", "list", "beside"])
    def test_a_file_that_appears_counts(self, keep: Any, tmp_path: Path, named: str) -> None:
        file = tmp_path / "settings.json"
        known = {
            "global": ("PATH", {"PATH": file}),
            "constant": (f"Path({str(file)!r})", {}),
            "list": ("Path(PATHS[50])", {"PATHS": [str(tmp_path / "other")] * 50 + [str(file)] * 50}),
            "beside": ("(FOLDER / 'settings.json')", {"FOLDER": tmp_path}),
        }
        expression, names = known[named]
        names = {**names, "Path": Path, "__name__": __name__}
        exec(f"def read(): return {expression}.read_text() if {expression}.exists() else 'none'", names)
        read = keep(names["read"])
        assert read() == read() == "none"
        file.write_text("first")
        assert read() == read() == "first"
        file.unlink()
        assert read() == "none"

    def test_settings_of_another_thread_are_no_effect_of_a_call(self, keep: Any) -> None:
        began, done = threading.Event(), threading.Event()

        def third(count: int) -> str:
            if count == 1:
                began.set()
                done.wait(60)
            return str(Decimal(count) / 3)

        f = keep(third)

        def call() -> str:
            with localcontext(prec=5):
                result: str = f(1)
                return result

        with ThreadPoolExecutor(1) as thread:
            other = thread.submit(call)
            assert began.wait(60)
            assert f(4) == "1." + 27 * "3"
            done.set()
            assert other.result() == "0.33333"
        assert f(1) == "0." + 28 * "3"
        assert f(7) == "2." + 27 * "3"

    def test_modes_of_torch_count_where_code_uses_torch(self, keep: Any) -> None:
        def product(x: Any) -> Any:
            return torch.mm(x, x)

        f, x = keep(product), torch.ones(2, 2)
        with torch.no_grad():
            assert f(x).dtype == torch.float32
            with torch.autocast("cpu", torch.bfloat16):
                assert f(x).dtype == torch.bfloat16
            assert f(x).dtype == torch.float32
        weight = torch.ones(2, 2, requires_grad=True)
        with torch.no_grad():
            f(weight)
        with pytest.raises(ws.UnsupportedType, match="requires_grad"):
            f(weight)

    def test_modes_of_torch_count_where_only_arguments_are_of_torch(self, keep: Any, calls: list[Any]) -> None:
        f = keep(scaled)
        with torch.no_grad():
            f(torch.ones(2))
        f(torch.ones(2))
        assert len(calls) == 2

    @pytest.mark.parametrize("base", [overrides.TorchFunctionMode, _python_dispatch.TorchDispatchMode])
    @pytest.mark.parametrize("of_code", [True, False])
    def test_modes_that_replace_operators_count(self, keep: Any, base: Any, of_code: bool) -> None:
        class Scaled(base):  # type: ignore[misc]
            def __init__(self, by: float) -> None:
                super().__init__()
                self.by = by

            def change(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                found = function(*args, **(kwargs or {}))
                return found * self.by if isinstance(found, torch.Tensor) and "abs" in str(function) else found

            __torch_function__ = __torch_dispatch__ = change

        f, x = keep((lambda x: torch.abs(x)) if of_code else lambda x: abs(x)), torch.ones(2)
        assert f(x)[0] == 1
        for by in (2.0, 3.0):
            with Scaled(by):
                assert f(x).tolist() == f(x).tolist() == [by, by]
        assert f(x)[0] == 1
        with torch.device("cpu"):
            assert f(x)[0] == 1
        with flop_counter.FlopCounterMode(display=False):
            assert f(x)[0] == 1

    def test_modes_that_replace_operators_do_not_change_what_arguments_are(self, keep: Any) -> None:
        class Zeros(_python_dispatch.TorchDispatchMode):
            def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                found = function(*args, **(kwargs or {}))
                return found * 0 if "view" in str(function) else found

        f = keep(lambda x: x + 1)
        with Zeros():
            assert [f(torch.full((2,), by)).tolist() for by in (1.0, 2.0)] == [[2, 2], [3, 3]]

    @pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # torch makes its formulas of forward mode
    @pytest.mark.parametrize("call", [torch.func.grad, torch.func.vmap, lambda f: lambda x: tangent_of(f, x)])
    def test_tensors_within_transforms_of_torch_are_refused(self, keep: Any, call: Callable[[Any], Any]) -> None:
        f, x = keep(lambda x: (x * x).sum()), torch.ones(2)
        f(x)
        with pytest.raises(ws.NoFingerprint, match=r"\(x\): a tensor within torch\.func or forward mode"):
            call(f)(x)

    def test_an_array_that_was_written_to_is_another_argument(self, keep: Any, calls: list[Any]) -> None:
        f = keep(scaled)
        small, large = np.zeros(8), np.zeros(1 << 18)
        for array in (small, large):
            assert f(array)[0] == 0
            array[0] = 1
            assert f(array)[0] == 2
        assert len(calls) == 4

    def test_an_array_in_an_object_that_was_written_to_is_another_argument(self, keep: Any) -> None:
        def first(box: Box) -> float:
            return float(box.pixels[0])

        f = keep(first)
        box = Box(1, np.zeros(1 << 18))
        assert f(box) == 0
        box.pixels[0] = 1
        assert f(box) == 1

    def test_variadic_arguments(self, keep: Any) -> None:
        seen = []

        def join(*args: Any, sep: str = "-", **options: Any) -> str:
            seen.append(1)
            return sep.join(map(str, [*args, *options.items()]))

        f, results = keep(join), []
        calls = [((1, 2), {}), ((1,), {}), ((1, 2), {"sep": "+"}), ((), {"a": 1}), ((), {"b": 1}), ((Box(1),), {})]
        for _ in range(2):
            for args, options in calls:
                results.append(f(*args, **options))
        assert len(seen) == len(calls)
        assert results[:6] == results[6:] == ["1-2", "1", "1+2", "('a', 1)", "('b', 1)", "Box(size=1, pixels=None)"]

    def test_a_call_that_does_not_fit_is_the_functions_own_error(self, keep: Any) -> None:
        f = keep(scaled)
        for args, options in ((), {}), ((1, 2, 3), {}), ((1,), {"other": 1}), ((1,), {"x": 1}):
            with pytest.raises(TypeError, match=r"scaled\(\)"):
                f(*args, **options)

    def test_a_positional_only_parameter(self, keep: Any) -> None:
        def half(x: int, /) -> float:
            return x / 2

        f = keep(half)
        assert [f(4), f(4)] == [2, 2]
        with pytest.raises(TypeError, match="positional-only"):
            f(x=4)

    def test_ignored_parameters_make_no_difference(self, keep: Any, calls: list[Any]) -> None:
        f = keep(scaled, ignore=["offset"])
        assert [f(1), f(1, offset=5)] == [2, 2]
        assert len(calls) == 1

    def test_long_integers(self, keep: Any) -> None:
        last = keep(eval(f"lambda values: values[-1] % 1000 % 0x1{'0' * 5000}"))
        for number in (1, 2):
            assert last([*[10**5000] * 20, 10**5000 + number]) == number

    def test_odd_strings(self, keep: Any) -> None:
        f = keep(len)
        for text in ("\ud800", "a\0b", "x" * 10_000, "x" * 9_999, ""):
            assert [f(text), f(text)] == [len(text)] * 2
        assert f.cache.stats().misses == 5


class TestFiles:
    def read(self, keep: Any) -> Any:
        def read(path: Any) -> str:
            path = Path(os.fsdecode(path))
            return "".join(sorted(p.read_text() for p in path.iterdir())) if path.is_dir() else path.read_text()

        return keep(read)

    @pytest.mark.parametrize("kind", [str, Path, os.fsencode])
    def test_a_path_counts_with_the_file_that_it_names(self, keep: Any, tmp_path: Path, kind: Any) -> None:
        f, file = self.read(keep), tmp_path / "file.txt"
        file.write_text("one")
        assert [f(kind(str(file))), f(kind(str(file)))] == ["one", "one"]
        file.write_text("other")
        assert f(kind(str(file))) == "other"
        assert f.cache.stats().hits == 1

    @pytest.mark.parametrize("kind", [str, Path])
    def test_a_path_below_the_home_folder_counts_with_its_file(
        self, keep: Any, tmp_path: Path, monkeypatch: Any, kind: Any
    ) -> None:
        f = keep(lambda path: Path(path).expanduser().read_text())
        monkeypatch.setenv("HOME", str(tmp_path))
        (tmp_path / "file.txt").write_text("one")
        assert [f(kind("~/file.txt")), f(kind("~/file.txt"))] == ["one", "one"]
        (tmp_path / "file.txt").write_text("other")
        assert f(kind("~/file.txt")) == "other"
        (tmp_path / "home").mkdir()
        (tmp_path / "home" / "file.txt").hardlink_to(tmp_path / "file.txt")
        monkeypatch.setenv("HOME", str(tmp_path / "home"))
        assert f(kind("~/file.txt")) == "other"
        assert (f.cache.stats().hits, f.cache.stats().misses) == (1, 3)

    def test_a_path_in_a_container_counts_with_its_file(self, keep: Any, tmp_path: Path) -> None:
        f, file = keep(lambda paths: [Path(path).read_text() for path in paths]), tmp_path / "file.txt"
        file.write_text("one")
        assert f([str(file)]) == ["one"]
        file.write_text("other")
        assert f([str(file)]) == ["other"]

    def test_which_of_several_paths_has_the_file_counts(self, keep: Any, tmp_path: Path) -> None:
        f, paths = keep(lambda paths: [Path(path).exists() for path in paths]), [tmp_path / "a", tmp_path / "b"]
        paths[0].touch()
        assert f(paths) == [True, False]
        paths[0].rename(paths[1])
        assert f(paths) == [False, True]

    @pytest.mark.parametrize("value", [1, "x"])
    def test_most_of_many_texts_are_not_looked_up(
        self, keep: Any, tmp_path: Path, monkeypatch: Any, value: Any
    ) -> None:
        looked_up = []

        class Stamps(FileStamps):
            def stamp(self, text: str, **options: Any) -> str:
                looked_up.append(text)
                return super().stamp(text, **options)

        monkeypatch.setattr("warmstore.functions.value_texts._STAMPS", Stamps())
        monkeypatch.chdir(tmp_path)
        (tmp_path / "of").mkdir()
        f = keep(lambda table: Path(list(table)[-1]).read_text())
        for text in ("a", "bc"):
            (tmp_path / "of" / "mine.txt").write_text(text)
            table = {f"key {at}": value for at in range(5000)} | {"of/mine.txt": value}
            assert f(table) == f(table) == text
        assert set(looked_up) == {"of/mine.txt"}

    def test_a_folder_counts_with_the_files_below_it(self, keep: Any, tmp_path: Path) -> None:
        f, folder = self.read(keep), tmp_path / "data"
        folder.mkdir()
        (folder / "a").write_text("a")
        assert [f(folder), f(folder)] == ["a", "a"]
        (folder / "b").write_text("b")
        assert f(folder) == "ab"

    def test_a_file_counts_that_a_variable_of_the_environment_names(
        self, keep: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        file = tmp_path / "settings.json"
        monkeypatch.setenv("WARMSTORE_TEST_FILE", str(file))
        monkeypatch.setenv("WARMSTORE_TEST_FOLDER", str(tmp_path))
        of_file = keep(lambda: Path(os.environ["WARMSTORE_TEST_FILE"]).read_text())
        of_folder = keep(lambda: Path(os.environ["WARMSTORE_TEST_FOLDER"], "settings.json").read_text())
        for text in ("a", "ab"):
            file.write_text(text)
            assert of_file() == of_folder() == text

    def test_a_folder_around_the_cache_counts_without_the_results(self, keep: Any, tmp_path: Path) -> None:
        def names(folder: Path) -> list[str]:
            return sorted(file.name for file in folder.rglob("*.txt"))

        f, g = keep(names), keep(lambda folder: len(names(folder)))
        (tmp_path / "cache").mkdir()
        (tmp_path / "cache" / "a.txt").write_text("a")
        for _ in range(3):
            assert (f(tmp_path), g(tmp_path)) == (["a.txt"], 1)
            f.cache.flush()
            g.cache.flush()
        assert (f.cache.stats().hits, g.cache.stats().hits) == (2, 2)
        (tmp_path / "cache" / "b.txt").write_text("b")
        assert (f(tmp_path), g(tmp_path)) == (["a.txt", "b.txt"], 2)

    def test_a_folder_with_too_many_files_is_refused(self, keep: Any, tmp_path: Path, monkeypatch: Any) -> None:
        monkeypatch.setattr("warmstore.identity.named_files._MOST_BELOW", 1)
        for name in "abc":
            (tmp_path / name).touch()
        with pytest.raises(ws.NoFingerprint, match=r"path: the folder .*ignore=\('path',\)"):
            self.read(keep)(tmp_path)

    def test_a_function_that_writes_the_file_it_is_given_is_not_kept(
        self, keep: Any, tmp_path: Path, caplog: Any
    ) -> None:
        def write(path: str) -> int:
            return Path(path).write_text("some text")

        f = keep(write)
        assert [f(str(tmp_path / "out")), f(str(tmp_path / "out2"))] == [9, 9]
        assert f.cache.stats().refused == 2
        assert caplog.text.count("changed while it ran") == 1


class TestCode:
    def version(self, keep: Any, source: str) -> Any:
        space: dict[str, Any] = {"__name__": "__main__"}
        exec(compile(source, "<cell>", "exec"), space)
        return keep(space["f"])

    def test_edited_code_is_a_miss_and_restored_code_a_hit(self, keep: Any) -> None:
        first = "def helper(x): return x + 1\ndef f(x): return helper(x) * 2\n"
        edited = "def helper(x): return x + 2\ndef f(x): return helper(x) * 2\n"
        for source, result, hits in ((first, 4, 0), (edited, 6, 0), (first, 4, 1), ("# moved\n\n" + edited, 6, 1)):
            f = self.version(keep, source)
            assert f(1) == result
            assert f.cache.stats().hits == hits, source
            f.cache.close()

    def test_a_global_counts(self, keep: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        f = keep(lambda x: x * SCALE)
        assert f(2) == 6
        monkeypatch.setattr(f"{__name__}.SCALE", 5)
        assert f(2) == 10
        monkeypatch.undo()
        assert f(2) == 6
        assert f.cache.stats().hits == 1

    def test_a_name_that_the_program_adds_to_the_builtins_counts(self, keep: Any, monkeypatch: Any) -> None:
        settings = types.SimpleNamespace(size=1, sizes=[2])
        monkeypatch.setattr("builtins.warmstore_settings", settings, raising=False)
        f = keep(lambda: (warmstore_settings.size, list(warmstore_settings.sizes)))  # type: ignore[name-defined] # noqa: F821
        assert f() == (1, [2])
        settings.size = 3
        assert f() == (3, [2])
        settings.sizes[0] = 4
        assert f() == (3, [4])

    def test_the_types_of_functions_of_a_library_of_c_count(self, keep: Any) -> None:
        library = ctypes.CDLL(None)
        f = keep(lambda: [library.abs(-3), library.labs(-3)])
        assert f() == f() == [3, 3]
        assert f.cache.stats().hits == 1
        library.abs.restype = ctypes.c_bool
        assert f()[0] is True
        library.labs.errcheck = lambda result, function, args: result + 1
        assert f() == [True, 4]

    def test_structures_of_c_count_with_their_fields(self, keep: Any) -> None:
        """A library whose functions take them was refused, since a field is an object of C."""

        def pair(kind: Any) -> Any:
            return type("Pair", (ctypes.Structure,), {"_fields_": [("first", ctypes.c_int), ("second", kind)]})

        library = ctypes.CDLL(None)
        library.labs.argtypes = [ctypes.POINTER(pair(ctypes.c_int))]
        f = keep(lambda: library.abs(-3))
        assert f() == f() == 3
        assert f.cache.stats().hits == 1
        library.labs.argtypes = [ctypes.POINTER(pair(ctypes.c_float))]
        assert f() == 3
        assert f.cache.stats().hits == 1
        library.labs.argtypes = [ctypes.POINTER(pair(ctypes.c_int))]
        assert f() == 3
        assert f.cache.stats().hits == 2

    def test_a_class_that_is_registered_with_one_of_python_counts(self, keep: Any) -> None:
        class Own:
            pass

        own = Own()
        f = keep(lambda: isinstance(own, numbers.Rational))
        assert f() is False
        numbers.Rational.register(Own)
        assert f() is True

    def test_what_appears_later_counts(self, keep: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        def module(number: int) -> types.ModuleType:
            made = types.ModuleType("warmstore_late")
            made.number = number  # type: ignore[attr-defined]
            return made

        class Late:
            pass

        late, own = Late(), module(1)
        monkeypatch.setitem(sys.modules, "warmstore_late", own)

        def imported() -> int:
            import warmstore_late  # type: ignore[import-not-found]

            return int(warmstore_late.number)

        def missing() -> int:
            try:
                return int(late.number)  # type: ignore[attr-defined]
            except AttributeError:
                return 0

        f, g = keep(imported), keep(missing)
        assert (f(), g()) == (1, 0)
        monkeypatch.setitem(sys.modules, "warmstore_late", module(2))
        Late.__getattr__ = lambda self, name: 7  # type: ignore[attr-defined]
        assert (f(), g()) == (2, 7)

    @pytest.mark.parametrize("base", [list, deque])
    def test_elements_count_in_containers_that_count_and_give_others(self, keep: Any, base: Any) -> None:
        """Calls raised an error where a subclass has another length, and elements behind `__iter__` did not count."""

        class Own(base):  # type: ignore[misc]
            def __len__(self) -> int:
                return 7

            def __iter__(self) -> Iterator[int]:
                return iter([5])

        own = Own([1, 2])
        f = keep(lambda: [len(own), *own, own[0]])
        assert f() == f() == [7, 5, 1]
        assert f.cache.stats().hits == 1
        own[0] = 3
        assert f() == [7, 5, 3]

    def test_an_object_that_the_first_call_makes_is_the_memory_of_the_function(
        self, keep: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """With an object among the arguments, the same call was computed again, and one more in each later run."""

        def run(weight: int = 3) -> Any:
            module = types.ModuleType("warmstore_model")
            monkeypatch.setitem(sys.modules, module.__name__, module)
            exec(
                f"class Model:\n    def __init__(self): self.weight = {weight}\n"
                "MODEL = None\n"
                "def model():\n    global MODEL\n    MODEL = MODEL or Model()\n    return MODEL\n"
                "def f(box): return model().weight * box.size\n",
                vars(module),
            )
            return keep(module.f)

        first = run()
        assert [first(Box(size)) for size in (1, 1, 2)] == [3, 3, 6]
        assert first.cache.stats().hits == 1
        assert [run(4)(Box(2)), run()(Box(2))] == [8, 6]
        later = run()
        assert [later(Box(3)), later(Box(2))] == [9, 6]
        assert later.cache.stats().hits == 1
        sys.modules["warmstore_model"].MODEL.weight = 5  # by the program
        assert later(Box(3)) == 15

    def test_what_a_method_puts_into_its_object_is_its_memory_for_any_arguments(self, keep: Any) -> None:
        class Lazy:
            table: Any = None

            @keep
            def at(self, box: Any) -> int:
                if self.table is None:
                    self.table = [3, {"scale": 2}]
                return int(self.table[0]) * box.size

            @keep
            def is_filled(self, box: Any) -> bool:
                return self.table is not None

        lazy = Lazy()
        assert lazy.is_filled(Box(1)) is False
        assert [lazy.at(Box(size)) for size in (1, 1, 2)] == [3, 3, 6]
        assert Lazy.at.cache.stats().hits == 1
        assert lazy.is_filled(Box(1)) is True  # of another function
        assert [Lazy().at(Box(2)), lazy.at(Box(2))] == [6, 6]
        assert Lazy.at.cache.stats().hits == 3
        lazy.table[0] = 4
        assert lazy.at(Box(2)) == 8

    def test_the_first_object_of_a_subclass_of_a_protocol_changes_nothing(self, keep: Any) -> None:
        """`typing` then puts a constructor into the class: the call was computed once more, in each run."""

        class Reads(Protocol):
            n = 1

        class Base:
            def __init__(self) -> None:
                self.m = 2

        class Own(Reads, Base):
            pass

        f = keep(lambda box: Own().n + Own().m + box.size)
        assert f(Box(3)) == f(Box(3)) == 6
        assert f.cache.stats().hits == 1
        Base.__init__ = lambda self: setattr(self, "m", 5)  # type: ignore[method-assign, assignment]
        del Own.__init__
        assert f(Box(3)) == 9

    def test_a_constructor_counts_where_code_asks_for_the_class_by_its_name(self, keep: Any) -> None:
        class Made(torch.nn.Module):
            number = 1

            def __init__(self) -> None:
                super().__init__()

        made = Made()
        f = keep(lambda: operator.attrgetter("__class__")(made)().number)
        assert f() == 1
        Made.__init__ = lambda self: self.__dict__.update(number=2)  # type: ignore[method-assign]
        assert f() == 2

    def test_the_function_in_a_descriptor_counts(self, keep: Any) -> None:
        """A cached property that nothing has read yet, and a partial method, kept the one of before."""

        class Own:
            by = functools.cached_property(lambda self: 1)
            add = functools.partialmethod(lambda self, k, x: int(k + x), 1)

        by, add, own, other = vars(Own)["by"], vars(Own)["add"], Own(), Own()
        f, g = keep(lambda: own.by), keep(lambda x: other.add(x))
        assert [f(), g(2)] == [1, 3]
        del own.by
        assert [f(), g(2)] == [1, 3]
        assert f.cache.stats().hits == g.cache.stats().hits == 1
        by.func, add.func = (lambda self: 5), (lambda self, k, x: int(k * x))
        assert [f(), g(2)] == [5, 2]
        add.args = (4,)
        assert g(2) == 8

    def test_a_closure_counts(self, keep: Any) -> None:
        factor = 2
        f = keep(lambda x: x * factor)
        assert f(2) == 4
        factor = 3
        assert f(2) == 6

    def test_a_cached_function_that_it_calls_counts_by_its_code(self, keep: Any) -> None:
        source = "def g(x): return x + {}\ng = keep(g)\ndef f(x): return g(x)\n"
        results = []
        for constant in (1, 2):
            space: dict[str, Any] = {"__name__": "__main__", "keep": keep}
            exec(compile(source.format(constant), "<cell>", "exec"), space)
            results.append(keep(space["f"])(1))
        assert results == [2, 3]

    def test_a_decorator_around_a_cached_function_counts(self, keep: Any) -> None:
        def plus(amount: int) -> Any:
            def decorate(function: Any) -> Any:
                @functools.wraps(function)
                def wrapper(x: int) -> int:
                    return int(function(x)) + amount

                return wrapper

            return decorate

        inner = keep(scaled)
        assert [keep(plus(1)(inner))(1), keep(plus(5)(inner))(1)] == [3, 7]

    def test_recursion(self, keep: Any) -> None:
        seen = []

        def fibonacci(n: int) -> int:
            seen.append(n)
            return n if n < 2 else int(fibonacci(n - 1)) + int(fibonacci(n - 2))

        fibonacci = keep(fibonacci)
        assert fibonacci(30) == 832040
        assert len(seen) == 31

    def test_version_stands_for_what_is_unknown(self, keep: Any) -> None:
        def f(x: int) -> int:
            return int(eval("x + 1"))

        with pytest.raises(ws.NoFingerprint, match="eval runs text"):
            keep(f)(1)
        assert [keep(f, "1")(1), keep(f, version="1")(1)] == [2, 2]
        assert keep(f, version="2").check_call_in_cache(1) is False
        assert keep(f, version="1").check_call_in_cache(1) is True

    def test_a_method_is_asked_with_its_object(self, keep: Any) -> None:
        """Without it, the answer was no."""

        class Encoder:
            @keep
            def encode(self, x: int) -> int:
                return x + 1

        encoder = Encoder()
        assert not Encoder.encode.check_call_in_cache(encoder, 1)
        assert encoder.encode(1) == 2
        assert Encoder.encode.check_call_in_cache(encoder, 1)
        with pytest.raises(TypeError, match="missing a required argument: 'x'"):
            encoder.encode.check_call_in_cache(1)


class Model:
    def __init__(self, weight: int) -> None:
        self.weight = weight
        self.unused = 0

    def times(self, x: int) -> int:
        return self.helper(x) * self.weight

    def helper(self, x: int) -> int:
        return x


class TestKinds:
    def test_what_the_method_reads_of_self_counts(self, keep: Any) -> None:
        times = keep(Model.times)
        one, other = Model(2), Model(3)
        assert [times(one, 1), times(other, 1), times(Model(2), 1)] == [2, 3, 2]
        one.unused = 7
        assert times(one, 1) == 2
        one.weight = 5
        assert times(one, 1) == 5
        assert times.cache.stats().misses == 3

    def test_decorated_methods(self, tmp_path: Path) -> None:
        class Point:
            def __init__(self, x: int) -> None:
                self.x = x

            @ws.cached(tmp_path)
            def plus(self, y: int = 1) -> int:
                return self.x + y

            @staticmethod
            @ws.cached(tmp_path)
            def inner_static(y: int) -> int:
                return y

            @ws.cached(tmp_path)
            @staticmethod
            def outer_static(y: int) -> int:
                return -y

            @classmethod
            @ws.cached(tmp_path)
            def inner_class(cls, y: int) -> str:
                return f"{cls.__name__} {y}"

            @ws.cached(tmp_path)
            @classmethod
            def outer_class(cls, y: int) -> str:
                return f"{cls.__name__} {y}"

        for _ in range(2):
            assert [Point(1).plus(), Point(1).plus(y=1), Point(2).plus()] == [2, 2, 3]
            assert [Point.inner_static(1), Point.outer_static(1), Point(1).outer_static(1)] == [1, -1, -1]
            assert [Point.inner_class(1), Point.outer_class(1), Point(1).outer_class(1)] == ["Point 1"] * 3
        assert Point.plus.cache.stats().misses == 2
        assert Point.outer_static.cache.stats().misses == 1
        assert Point.outer_class.cache.stats().misses == 1
        for one in (Point.plus, Point.inner_static, Point.outer_static, Point.inner_class, Point.outer_class):
            one.cache.close()

    def test_a_bound_method_a_partial_a_lambda_a_function_of_c_and_an_object(self, keep: Any) -> None:
        class Adder:
            def __init__(self, amount: int) -> None:
                self.amount = amount

            def __call__(self, x: int) -> int:
                return x + self.amount

        functions = [
            (Model(2).times, Model(4).times),
            (functools.partial(scaled, by=3.0), functools.partial(scaled, by=4.0)),
            (lambda x: x + 1, lambda x: x + 2),
            (abs, hash),
            (np.negative, np.square),
            (Adder(1), Adder(2)),
        ]
        for pair in functions:
            for function in pair:
                f = keep(function)
                assert [f(-3), f(-3)] == [function(-3)] * 2
                assert f.cache.stats().hits == 1, function

    def test_the_name_the_documentation_and_the_signature_stay(self, keep: Any) -> None:
        f = keep(scaled)
        assert (f.__name__, f.__doc__, f.__module__) == ("scaled", "A documented function.", __name__)
        assert inspect.signature(f) == inspect.signature(scaled)
        assert f.__wrapped__ is scaled

    @pytest.mark.parametrize("function", [Model, functools.partial(Model, 1)])
    def test_classes_are_refused(self, keep: Any, function: Any) -> None:
        with pytest.raises(ws.UnsupportedType, match="Model is a class"):
            keep(function)

    def test_functions_whose_result_comes_later_are_refused(self, keep: Any) -> None:
        def generator() -> Iterator[int]:
            yield 1

        async def coroutine() -> None: ...

        async def asynchronous() -> Any:
            yield 1

        class Object:
            def __call__(self) -> Iterator[int]:
                yield 1

        for function in (generator, coroutine, asynchronous, functools.partial(generator), Object()):
            with pytest.raises(ws.UnsupportedType, match=r"is a(n asynchronous)? (generator|coroutine)"):
                keep(function)

    def test_wrong_arguments_of_the_decorator(self, tmp_path: Path) -> None:
        with pytest.raises(TypeError, match=r"@ws.cached\('cache'\)"):
            ws.cached(scaled)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="a function; got 3"):
            ws.cached(tmp_path)(3)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="is a remote"):
            ws.cached("s3://bucket/x")(scaled)
        with pytest.raises(ValueError, match="max_size"):
            ws.cached(tmp_path, max_size="1kB")(scaled)


class TestRefused:
    def test_random_numbers(self, keep: Any) -> None:
        shared = np.random.default_rng(0)
        for function in (
            lambda: random.random(),
            lambda: np.random.rand(),
            lambda: torch.rand(1),
            lambda: shared.random(),
        ):
            with pytest.raises(ws.NotStateless, match="draws random numbers from"):
                keep(function)()
        with pytest.raises(ws.NotStateless, match=r"draws random numbers from '.*\(rng\)'"):
            keep(lambda rng: rng.random())(np.random.default_rng(0))
        f = keep(lambda seed: np.random.default_rng(seed).random())
        assert f(1) == f(1) != f(2)

    def test_random_numbers_that_only_the_call_shows(self, keep: Any, caplog: Any) -> None:
        import string

        def hidden() -> str:
            return "".join(getattr(random, "choices")(string.ascii_letters, k=20))  # noqa: B009

        try:
            f = keep(hidden)
            assert f() != f()
        except ws.NotStateless:
            pass

    def test_an_open_file_and_a_generator(self, keep: Any, tmp_path: Path) -> None:
        f = keep(lambda x: len(list(x)))
        with pytest.raises(ws.NoFingerprint, match=r"x.*generator.*\. Pass ignore="):  # and not `version=`
            f(number for number in range(3))
        (tmp_path / "file").touch()
        with (tmp_path / "file").open() as file, pytest.raises(ws.NoFingerprint, match=r"open file.*ignore="):
            f(file)

    def test_version_does_not_stand_for_arguments(self, keep: Any) -> None:
        with pytest.raises(ws.NoFingerprint, match="version= stands for parts of the function alone"):
            keep(lambda x: len(list(x)), version="1")(number for number in range(3))

    def test_an_argument_that_is_changed_in_place(self, keep: Any, caplog: Any) -> None:
        def append(x: list[int]) -> int:
            x.append(1)
            return len(x)

        f, values = keep(append), []
        assert [f(values), f(values), f([])] == [1, 2, 1]
        assert f.cache.stats().refused == 3
        assert "an argument, or a file that one names, changed" in caplog.text

    def test_exceptions_are_not_kept(self, keep: Any, calls: list[Any]) -> None:
        def fails(x: int) -> int:
            CALLS.append(x)
            raise ZeroDivisionError

        f = keep(fails)
        for _ in range(2):
            with pytest.raises(ZeroDivisionError):
                f(1)
        assert calls == [1, 1]


class TestThreads:
    def test_a_result_of_a_function_that_was_edited_beside_it_is_not_kept(self, keep: Any) -> None:
        """It was kept for the function as it was before."""
        settings = types.SimpleNamespace(scale=2)
        began, edited = threading.Event(), threading.Event()

        def scaled(x: int) -> int:
            if x == 1:
                began.set()
                edited.wait(60)
            return x * settings.scale

        f = keep(scaled)
        with ThreadPoolExecutor(1) as pool:
            other = pool.submit(f, 1)
            assert began.wait(60)
            settings.scale = 3
            edited.set()
            assert other.result() == 3
        settings.scale = 2
        assert f(1) == 2
        settings.scale = 3
        assert f(1) == 3
        assert f.cache.stats().refused == 1

    def test_many_threads_and_functions(self, keep: Any) -> None:
        functions = [keep(lambda x: np.full(1000, x)), keep(lambda x: np.full(1000, x + 1))]
        start = threading.Barrier(8)

        def work(number: int) -> None:
            start.wait()
            for x in range(40):
                for extra, f in enumerate(functions):
                    assert (f((x * 7 + number) % 40) == (x * 7 + number) % 40 + extra).all()

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(work, range(8)))
        for f in functions:
            assert f.cache.stats().hits > 200
