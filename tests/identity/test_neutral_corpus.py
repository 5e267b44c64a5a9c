"""Edits and moves of real programs that change nothing they give: the key stays the same."""

import ast
import copy
import json
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.identity.engine import identify
from tests.identity.leaves import reached
from tests.identity.worlds import MODULES, PROGRAMS, Examples, World, canonical, run, source
from tests.slow import either, thinned

from warmstore.identity import Identity

ROOT = Path(__file__).parent.parent.parent
WHOLE_MODULES = {"training.rate_by_name", "training.read", "training.scaled_numbers"}  # read a module by computed names
Keys = dict[str, Identity]


def keys_of(world: World, program: str) -> Keys:
    with world.entries(program) as entries:
        return {name: identify(entry) for name, entry in entries.items()}


def assert_equal(before: Keys, after: Keys) -> None:
    assert before.keys() == after.keys()
    changed = {name: before[name].difference(after[name]) for name in before if before[name] != after[name]}
    changed = {name: words for name, words in changed.items() if before[name].digest != after[name].digest}
    assert not changed, "\n".join(f"{name}: {words}" for name, words in changed.items())


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("world"))


def with_comments(name: str) -> str:
    """A comment and empty lines before each statement."""
    lines = canonical(name).splitlines()
    statements = {node.lineno for node in ast.walk(ast.parse(canonical(name))) if isinstance(node, ast.stmt)}
    for number in sorted(statements, reverse=True):
        line = lines[number - 1]
        indent = line[: len(line) - len(line.lstrip())]
        if not line.lstrip().startswith(("def ", "class ", "async ")) or not lines[number - 2].lstrip().startswith("@"):
            lines[number - 1 : number - 1] = ["", f"{indent}# what follows is line {number}", ""]
    return "\n".join(lines) + "\n"


class Docstrings(ast.NodeTransformer):
    """Gives every function, class and module another docstring, or none."""

    def __init__(self, text: str) -> None:
        self._text = text

    def visit(self, node: ast.AST) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            body = node.body[1:] if ast.get_docstring(node, clean=False) is not None else node.body
            first: list[ast.stmt] = [ast.Expr(ast.Constant(self._text))] if self._text else []
            node.body = first + body or [ast.Pass()]
        return node


def with_docstrings(text: str) -> Callable[[str], str]:
    return lambda name: ast.unparse(ast.fix_missing_locations(Docstrings(text).visit(ast.parse(canonical(name)))))


def with_types(name: str) -> str:
    """Annotations of local variables, which Python does not keep."""
    tree = ast.parse(canonical(name))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            free = {
                one for inner in ast.walk(node) if isinstance(inner, ast.Global | ast.Nonlocal) for one in inner.names
            }
            node.body = [_annotated(statement, free) for statement in node.body]
    return ast.unparse(ast.fix_missing_locations(tree))


def _annotated(statement: ast.stmt, free: set[str]) -> ast.stmt:
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target = statement.targets[0]
        if isinstance(target, ast.Name) and target.id not in free:
            return ast.AnnAssign(target, ast.Name("object", ast.Load()), statement.value, simple=1)
    return statement


def with_more(name: str) -> str:
    """A function, a class and a value that nothing uses, and another order of nothing else."""
    more = "def _unused(value):\n    return value * _UNUSED\n\nclass _Unused:\n    size = 3\n\n_UNUSED = [1, 2]\n"
    head, *rest = ast.parse(canonical(name)).body
    return "\n".join([ast.unparse(head), more, ast.unparse(ast.Module(rest, []))]) + "\n"


EDITS: dict[str, Callable[[str], str]] = {
    "as it is written": source,
    "comments": with_comments,
    "no docstrings": with_docstrings(""),
    "other docstrings": with_docstrings("Says nothing, at length.\n\nAnd more."),
    "annotations of variables": with_types,
}


@pytest.fixture(scope="module")
def edited(tmp_path_factory: pytest.TempPathFactory) -> dict[str, World]:
    return {edit: World(tmp_path_factory.mktemp("edited"), read) for edit, read in EDITS.items()}


def test_edits_are_edits() -> None:
    for edit, read in EDITS.items():
        assert sum(read(name) != canonical(name) for name in MODULES) > len(MODULES) / 2, edit


@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize("program", thinned(4, PROGRAMS))
def test_an_edit_that_says_nothing_keeps_the_key(
    program: str, edit: str, world: World, edited: dict[str, World]
) -> None:
    assert_equal(keys_of(world, program), keys_of(edited[edit], program))


@pytest.mark.parametrize("program", thinned(4, PROGRAMS))
def test_code_that_nothing_uses_keeps_the_key(program: str, world: World, tmp_path: Path) -> None:
    before, after = keys_of(world, program), keys_of(World(tmp_path, with_more), program)
    for name in WHOLE_MODULES & {f"{program}.{name}" for name in before}:
        entry = name.partition(".")[2]
        assert before.pop(entry).digest != after.pop(entry).digest
    assert_equal(before, after)


@pytest.mark.parametrize("program", thinned(4, PROGRAMS))
def test_a_moved_checkout_keeps_the_key(program: str, world: World, tmp_path: Path) -> None:
    moved = World(tmp_path / "deep" / "below" / "elsewhere")
    assert_equal(keys_of(world, program), keys_of(moved, program))


@pytest.mark.parametrize("program", thinned(4, PROGRAMS))
def test_another_working_directory_keeps_the_key(
    program: str, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = keys_of(world, program)
    monkeypatch.chdir(tmp_path)
    assert_equal(before, keys_of(world, program))


@pytest.mark.parametrize("program", thinned(4, PROGRAMS))
def test_a_second_import_keeps_the_key(program: str, world: World) -> None:
    assert_equal(keys_of(world, program), keys_of(world, program))


@pytest.mark.parametrize("program", thinned(4, PROGRAMS))
def test_the_order_of_asking_does_not_count(program: str, world: World) -> None:
    before = keys_of(world, program)
    with world.entries(program) as entries:
        backwards = {name: identify(entries[name]) for name in reversed(entries)}
        again = {name: identify(entries[name]) for name in before}
    assert_equal(before, {name: backwards[name] for name in before})
    assert_equal(before, again)


@pytest.mark.parametrize("program", thinned(4, PROGRAMS))
def test_threads_find_the_same_key(program: str, world: World) -> None:
    before = keys_of(world, program)
    with world.entries(program) as entries:
        found: list[Keys] = []
        threads = [
            threading.Thread(target=lambda: found.append({name: identify(entries[name]) for name in before}))
            for _ in range(3)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(found) == len(threads)
    for after in found:
        assert_equal(before, after)


@pytest.mark.parametrize("program", thinned(8, PROGRAMS))
@pytest.mark.parametrize(
    "clone", [copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))], ids=["copy", "pickle"]
)
def test_a_clone_has_the_same_key(program: str, clone: Callable[[object], object], world: World) -> None:
    with world.entries(program) as entries:
        before, after = {}, {}
        for name, entry in entries.items():
            try:
                cloned = clone(entry)
            except (TypeError, AttributeError, pickle.PicklingError):  # closures, locks
                continue
            before[name], after[name] = identify(entry), identify(cloned)
        assert_equal(before, after)
        assert before or program == "dataset"


@pytest.mark.parametrize("program", thinned(4, PROGRAMS))
def test_a_call_that_leaves_no_trace_keeps_the_key(program: str, world: World) -> None:
    """Whatever Python, NumPy and torch remember of a call by themselves does not count."""
    examples = Examples(world, program)
    with world.entries(program) as entries:
        before, after = {}, {}
        for name, entry in entries.items():
            values = [(leaf.path, leaf.value) for leaf in reached(entry, elements=10**6).leaves]
            key = identify(entry)
            run(entry, examples(name))
            if values == [(leaf.path, leaf.value) for leaf in reached(entry, elements=10**6).leaves]:
                before[name], after[name] = key, identify(entry)
        assert len(before) > len(entries) / 2
        assert_equal(before, after)


def test_another_process_finds_the_same_keys(world: World, tmp_path: Path) -> None:
    """With other hash seeds, in other orders, started elsewhere, and through Python's own import."""
    expected = {
        f"{program}.{name}": key.digest for program in PROGRAMS for name, key in keys_of(world, program).items()
    }
    for seed in ("0", "1", "77")[: either(1, 3)]:
        child = [sys.executable, "-B", "-m", "tests.identity.corpus_keys", str(world.folder.parent), seed]
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
        done = subprocess.run(child, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        assert found == expected, {
            name: (found.get(name), expected[name]) for name in expected if found.get(name) != expected[name]
        }
