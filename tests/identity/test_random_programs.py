"""Random programs: whatever is edited, a cached call gives what an uncached one gives; where nothing is, it is a hit.

A process fills the cache, edits the living program in place, and reloads an edited module. Another one, with another
seed of hashes, must find what was kept, also after edits of comments and the like. A last one has an edited source.
"""

import ast
import json
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.identity.mutations import mutations
from tests.identity.random_programs import HEAD, MODULES, RandomProgram, random_programs
from tests.identity.server import Server, Task
from tests.slow import either, is_long

ACTION = (
    "__import__('importlib').import_module('tests.identity.random_runs').main(__import__('sys').modules['program'])"
)


def _in_another_order(text: str) -> str:
    """Each function before the one that stood before it, where no import runs either."""
    tree = ast.parse(text)
    body = tree.body
    for at in range(len(body) - 1):
        if _is_only_defined(body[at]) and _is_only_defined(body[at + 1]):
            body[at : at + 2] = body[at + 1], body[at]
    return ast.unparse(tree) + "\n"


def _is_only_defined(node: ast.stmt) -> bool:
    return isinstance(node, ast.FunctionDef) and not (
        node.decorator_list or node.args.defaults or node.args.kw_defaults or "annotation" in ast.dump(node.args)
    )


NEUTRAL: dict[str, Callable[[str], str]] = {
    "nothing": lambda text: text,
    "another folder": lambda text: text,
    "comments": lambda text: "# A comment.\n\n" + re.sub(r"(?m)^( *)(return|def|class|@)", r"\1# More.\n\1\2", text),
    "formatting": lambda text: ast.unparse(ast.parse(text)) + "\n",
    "docstrings": lambda text: re.sub(r"(?m)^( *)def (.*):$", r"\1def \2:\n\1    'In words.'", text),
    "unrelated definitions": lambda text: (
        text.replace(HEAD, HEAD + "UNRELATED = 1\n")
        + "\ndef unrelated(x):\n    return UNRELATED + x\n\nclass Unrelated:\n    n = 1\n"
    ),
    "another order": _in_another_order,
    "other locals": lambda text: re.sub(r"\bv\b", "value", text),
}
_READ = {
    "docstrings": re.compile("__doc__"),
    "unrelated definitions": re.compile(r"globals\(\)"),
    "another order": re.compile(r"globals\(|vars\(|dir\(|__dict__"),
    "other locals": re.compile(r"vars\(|dir\("),
}
"""Where code reads what is no part of other programs, they are left as they are."""


@dataclass(frozen=True)
class Case:
    """A program and what happens to it.

    form: how the function is cached, see `Run`. live: numbers of edits of the living program, each with whether it is
    taken back. source: a module, and the number of an edit of its source.
    """

    program: RandomProgram
    form: int
    live: list[tuple[int, bool]]
    neutral: str
    source: tuple[str, int]

    def neutral_files(self) -> dict[str, str]:
        change, files = NEUTRAL[self.neutral], self.program.files
        if self.neutral in _READ and any(map(_READ[self.neutral].search, files.values())):
            return files
        if self.neutral == "unrelated definitions":  # they count where a module is used as a whole
            return files | {"program.py": change(files["program.py"])}
        return {name: change(text) if text else text for name, text in files.items()}

    def edited(self) -> dict[str, str]:
        """The text of the module that is edited, by its name; none where nothing can be edited."""
        module, number = self.source
        text = ast.unparse(ast.parse(self.program.files[module.replace(".", "/") + ".py"])) + "\n"
        numbers: list[int] = []
        list(mutations(module, text, lambda number: bool(numbers.append(number))))  # type: ignore[func-returns-value]
        chosen = number % max(len(numbers), 1)
        found = [each.source for each in mutations(module, text, lambda number: number == chosen)]
        return dict.fromkeys([module] if found else [], *found)


@st.composite
def cases(draw: st.DrawFn, edits: int, depth: int) -> Case:
    return Case(
        draw(random_programs(draw(st.integers(2, depth)))),
        draw(st.integers(0, 2)),
        draw(st.lists(st.tuples(st.integers(0, 9999), st.booleans()), min_size=edits // 2, max_size=edits)),
        draw(st.sampled_from(list(NEUTRAL))),
        (draw(st.sampled_from(MODULES)), draw(st.integers(0, 9999))),
    )


class Trial:
    """A case in a folder of its own: what was wrong, and what was refused."""

    def __init__(self, case: Case, folder: Path, server: Server, reseeded: Server) -> None:
        self.case, self.folder = case, folder
        self.wrong: list[str] = []
        self.refused: list[str] = []
        self.reports: list[dict[str, Any]] = []
        (folder / "pyproject.toml").touch()  # all modules are of one checkout
        files, edited = case.program.files, case.edited()
        self._run(server, "at first", files, live=case.live, reloads=list(edited.items()))
        self._run(reseeded, f"with another seed of hashes, {case.neutral}", case.neutral_files(), hits=True)
        for module, text in edited.items():
            self._run(server, f"{module} has another source", files | {module.replace(".", "/") + ".py": text})

    def _run(self, server: Server, words: str, files: dict[str, str], **plan: Any) -> None:
        is_moved = "another folder" in words
        root, cache = self.folder / ("moved" if is_moved else "program"), str(self.folder / "cache")
        shutil.rmtree(root, ignore_errors=True)
        for name, text in files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        program = self.case.program
        plan |= {"cache": cache, "arguments": program.arguments, "form": self.case.form, "remembers": program.remembers}
        (root / "plan.json").write_text(json.dumps(plan))
        reply = server.run(Task("function", str(root), cache, (ACTION,), str(root)))
        if reply.error:
            if not self.reports or plan.get("hits"):  # an edited program may not start
                self.wrong.append(f"{words}: {reply.error}")
            return
        report = json.loads((root / "report.json").read_text())
        self.reports.append(report)
        self.wrong += [f"{words}: {one}" for one in report["wrong"]]
        self.refused += [f"{words}: {one}" for one in report["refusals"]]

    def __str__(self) -> str:
        return "\n".join([*self.wrong, *self.refused, repr(self.case.program), f"form {self.case.form}"])


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[Server, Server]]:
    with Server(without_torch=True) as server, Server(hash_seed="4711", without_torch=True) as reseeded:
        yield server, reseeded


def test_a_cached_program_equals_itself(servers: tuple[Server, Server]) -> None:
    @settings(
        max_examples=either(10, 150),
        deadline=None,
        derandomize=not is_long(),
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(case=cases(edits=either(12, 20), depth=either(3, 4)))
    def tried(case: Case) -> None:
        with tempfile.TemporaryDirectory(prefix="warmstore-random-") as name:
            trial = Trial(case, Path(name), *servers)
        assert not trial.wrong, trial
        assert not trial.refused, trial

    tried()
