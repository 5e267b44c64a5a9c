"""Random programs: functions, closures, classes, containers and modules that call and hold one another.

All of them compute integers. The folder `grammar` has their parts: blocks of text, with what they give after `=>`, and
several such expressions between `;`. Tokens of a block stand for what is drawn for them:

- `<c>` a constant that no other place has, `<num>` a number that is computed of `<x>`, `<num:y>` one of y;
- `<fun>` an expression of a function of one number, `<body:x>` statements that end with a return;
- `<obj>` an object, and `<held>` a container; `<reads:o>` what is read of the last one by the variable o;
- `<members>` what the body of a class has, `<slotted>` and `<plain>` the same for classes without a `__dict__` and
  without an `__init__`; `init` and `|` begin lines for `__init__` and for before the class; `<o>` is the object there;
- `<helper>` another module, and `<helped>` a function in it.

Any other token is a new name that begins so, the same one in all of its block.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import indent
from typing import Any

from hypothesis import strategies as st

HEAD = """\
import abc, argparse, array, collections, collections.abc, contextlib, contextvars, copy, dataclasses, datetime
import decimal, enum, fractions, functools, itertools, json, operator, pathlib, re, string, struct, sys, threading
import types, typing, weakref
import numpy as np
import warmstore as ws
"""
CALLED = "warmstore.tests.identity.called"
MODULES = ("program", "helper", "package.part")
"""Each imports from those after it."""

_TOKEN = re.compile(r"<([a-zA-Z]+)(?::([^<>]*))?>")
_NESTED = re.compile(r"<(fun|obj|helper|body)\b")
_LATE = ("o", "x")  # tokens of what is read of an object, which the reading replaces


def _blocks(name: str) -> list[str]:
    text = (Path(__file__).parent / "grammar" / f"{name}.txt").read_text()
    return text.strip("\n").split("\n\n")


GRAMMAR = {name: _blocks(name) for name in ("numbers", "functions", "bodies", "held", "objects", "members")}


@dataclass(frozen=True)
class RandomProgram:
    """Texts by the names of files, and the arguments of `step` as code. `program.py` has `step`.

    remembers: calls change what the program knows, such as a counter, and no result.
    """

    files: dict[str, str]
    arguments: str
    remembers: bool = False

    def __repr__(self) -> str:
        texts = (f"# {name}\n{text.removeprefix(HEAD)}" for name, text in self.files.items() if text)
        return "\n".join([*texts, f"# called with ({self.arguments})"])


@dataclass
class _Object:
    """An expression of an object, and templates of what is read of it."""

    expression: str
    readers: list[str]


@dataclass
class _Module:
    name: str
    texts: list[str] = field(default_factory=list)
    functions: list[str] = field(default_factory=list)  # that others may use as well
    objects: list[_Object] = field(default_factory=list)


class _Writer:
    """Writes one program."""

    def __init__(self, draw: st.DrawFn, depth: int) -> None:
        self._draw = draw
        self._count = 0
        self._modules = [_Module(name) for name in MODULES]
        self._here = self._modules[0]
        self._depth = depth
        self._remembers = False

    # Choices

    def below(self, count: int) -> int:
        return self._draw(st.integers(0, count - 1))

    def pick(self, options: list[Any]) -> Any:
        return options[self.below(len(options))]

    def some(self, options: list[Any], most: int = 3) -> list[Any]:
        """One or more of the options, each once."""
        left = list(options)
        return [left.pop(self.below(len(left))) for _ in range(min(1 + self.below(most), len(left)))]

    def block(self, kind: str, depth: int) -> list[str]:
        """A block: its text, and what it gives. At depth 0 it has no others within, but for numbers."""
        blocks = self.blocks(kind, depth)
        bodies = [block for block in blocks if "<body" in block]
        return re.split(r"(?m)^=>", str(self.pick(bodies if bodies and not self.below(4) else blocks)))

    def blocks(self, kind: str, depth: int) -> list[str]:
        found = GRAMMAR[kind] if depth > 0 else [block for block in GRAMMAR[kind] if not _NESTED.search(block)]
        if depth <= 0 and kind == "numbers":
            found = [block for block in found if "<num" not in block and "<held" not in block]
        if self._here is self._modules[-1]:
            found = [block for block in found if "<helper>" not in block]
        return found

    def new(self, prefix: str = "") -> str:
        self._count += 1
        return f"{prefix}{self._count}"

    def define(self, text: str) -> None:
        if text.strip():
            self._here.texts.append(text.strip("\n"))

    # Parts

    def number(self, x: str, depth: int) -> str:
        return self.given("numbers", depth, {"x": x})

    def function(self, depth: int) -> str:
        if self._here.functions and not self.below(5):
            return str(self.pick(self._here.functions))
        found = self.given("functions", depth, {})
        if found.isidentifier():
            self._here.functions.append(found)
        return found

    def given(self, kind: str, depth: int, labels: dict[str, Any]) -> str:
        """Define what a block has, and return the expression that it gives."""
        parts = self.block(kind, depth)
        if len(parts) > 1:
            self.define(self.expanded(parts[0], depth, labels))
        return self.expanded(parts[-1].strip(), depth, labels)

    def body(self, x: str, depth: int) -> str:
        parts = self.block("bodies", depth)
        labels = {"x": x}
        if len(parts) > 1:
            self.define(self.expanded(parts[0], depth, labels))
        return self.expanded(parts[-1].strip("\n"), depth, labels)

    def held(self, depth: int) -> _Object:
        containers, *reads = self.block("held", depth)
        name = self.new("HELD")
        self.define(f"{name} = {self.expanded(self.pick(containers.split(chr(10))[:-1]), depth, {})}")
        return _Object(name, _listed(reads))

    def object(self, depth: int) -> _Object:
        if self._here.objects and not self.below(4):
            known: _Object = self.pick(self._here.objects)
            return known
        text, made, *reads = self.block("objects", depth)
        labels: dict[str, Any] = {"readers": [], "before": []}
        defined = self.expanded(text, depth, labels)
        for before in labels["before"]:
            self.define(before)
        self.define(defined)
        readers = [*labels["readers"], *(self.bound(reader, labels) for reader in _listed(reads))]
        found = _Object(self.expanded(made.strip(), depth, labels), readers)
        cls, _, arguments = found.expression.partition("(")
        if cls.isidentifier() and arguments and not self.below(6):  # the class, which is called wherever it is read
            found = _Object(cls, [reader.replace("<o>", f"<o>({arguments}") for reader in readers])
        if self.below(5):
            name = self.new("OBJECT")
            self.define(f"{name} = {found.expression}")
            found = _Object(name, found.readers)
            self._here.objects.append(found)
        return found

    def members(self, form: str, depth: int, outer: dict[str, Any]) -> str:
        """Lines of the body of a class, with its `__init__`. Their readers are added to those of the object."""
        init, body = list[str](), list[str]()
        for block in self.some(self.blocks("members", depth - 1), 4):
            text, *reads = re.split(r"(?m)^=>", block)
            labels = dict[str, Any]()
            expanded = self.expanded(text.strip("\n"), depth - 1, labels).split("\n")
            before = [line.removeprefix("|").removeprefix(" ") for line in expanded if line.startswith("|")]
            outer["before"].append("\n".join(before))
            init += [line.removeprefix("init ") for line in expanded if line.startswith("init ")]
            body += [line for line in expanded if not line.startswith(("init ", "|"))]
            for reader in _listed(reads):
                if reader == "<reads>":
                    outer["readers"] += [one.replace("<o>", f"<o>.{labels['n']}") for one in labels["obj"].readers]
                else:
                    outer["readers"].append(self.bound(reader, labels))
        if form == "plain":
            body += [line.removeprefix("self.") for line in init]
        else:
            if form == "slotted":
                names = tuple(line.partition(" ")[0].removeprefix("self.") for line in init)
                outer["slots"] = repr(self.pick([names, (*names, "__dict__", "__weakref__")]))
            body += ["def __init__(self, *args):", "    super().__init__(*args)", *(f"    {line}" for line in init)]
        return "\n".join(body)

    # Tokens

    def expanded(self, text: str, depth: int, labels: dict[str, Any]) -> str:
        """A text with what is drawn for its tokens."""
        lines = []
        for line in text.split("\n"):
            start = re.match(r"(?:\| |init )? *", line)
            assert start is not None
            done = ""
            rest = line
            while match := _TOKEN.search(rest):
                value = self.token(match[1], match[2], depth, labels)
                done, rest = done + rest[: match.start()] + value, rest[match.end() :]
            done += rest
            first, *others = done.split("\n")
            prefix = start[0].replace("init ", "")
            lines += [first, *(prefix + other for other in others)]
        found = "\n".join(lines)
        return found.replace("SLOTS", labels["slots"]) if "slots" in labels else found

    def token(self, name: str, of: str | None, depth: int, labels: dict[str, Any]) -> str:
        if name == "c":
            return str(100 + int(self.new()))
        if name == "num":
            return self.number(str(labels["x"] if of is None else labels.get(of, of)), depth - 1)
        if name == "remembers":
            self._remembers = True
            return ""
        if name == "fun":
            return self.function(depth - 1)
        if name == "body":
            return self.body(of or "x", depth - 1)
        if name in ("members", "slotted", "plain"):
            return self.members(name, depth, labels)
        if name in ("obj", "held"):
            if "obj" not in labels:
                labels["obj"] = self.object(depth - 1) if name == "obj" else self.held(depth - 1)
                return ""
            return str(labels["obj"].expression)
        if name == "reads":
            part, variable = labels["obj"], str(of)
            expression = part.expression if variable == "obj" else str(labels.get(variable, variable))
            x = str(labels.get("x", "x")) if variable in ("obj", "ALIAS") else "x"
            return " + ".join(self.read(reader, expression, x, depth) for reader in self.some(part.readers))
        if name in ("helper", "helped"):
            if "helper" not in labels:
                labels["helper"], labels["helped"] = self.helper(depth - 1)
            return str(labels[name])
        if name not in labels:
            if name in _LATE:
                return f"<{name}>"
            labels[name] = self.new(name)
        return str(labels[name])

    def read(self, reader: str, expression: str, x: str, depth: int) -> str:
        return f"({self.expanded(reader.replace('<o>', expression).replace('<x>', x), 0, {})})"

    def bound(self, reader: str, labels: dict[str, Any]) -> str:
        """A template of what is read, with the names of its block."""
        return _TOKEN.sub(
            lambda match: str(labels.get(match[1], match[0])) if match[1] not in ("c", *_LATE) else match[0], reader
        )

    def helper(self, depth: int) -> tuple[str, str]:
        before = self._here
        later = self._modules[self._modules.index(before) + 1 :]
        self._here = self.pick(later)
        try:
            name = self.new("f")
            body = indent(self.body("x", depth), "    ")
            self.define(f"def {name}(x):\n{body}")
            return self._here.name, name
        finally:
            self._here = before

    # The whole

    def program(self) -> RandomProgram:
        parts = [self.number("x", self._depth) for _ in range(1 + self.below(3))]
        given, read = self.argument()
        step = f"def step(x, y=None):\n    sys.audit({CALLED!r})\n    return [{', '.join([*parts, read])}]"
        files = {"package/__init__.py": ""}
        for module in self._modules:
            texts = [*module.texts, step] if module is self._here else module.texts
            files[module.name.replace(".", "/") + ".py"] = HEAD + "\n\n".join(texts) + "\n"
        return RandomProgram(files, f"{self.pick(['7', '2'])}{given}", self._remembers)

    def argument(self) -> tuple[str, str]:
        """An argument of `step`, and how that reads it."""
        kind = self.below(6)
        if kind == 0:
            return "", "0"
        if kind == 1:
            return ", y=[1, {'a': 3}]", "len(repr(y))"
        if kind == 2:
            return f", y={self.function(self._depth - 1)}", "y(x)"
        found = self.object(self._depth - 1)
        held, item = self.pick([("{}", "y"), ("[{}, 3]", "y[0]"), ("{{'a': ({},)}}", "y['a'][0]"), ("{}", "y")])
        reads = [self.read(reader, item, "x", 0) for reader in self.some(found.readers)]
        return f", y={held.format(found.expression)}", " + ".join(reads)


def _listed(reads: list[str]) -> list[str]:
    return [one.strip() for line in reads for one in line.split(" ; ")]


@st.composite
def random_programs(draw: st.DrawFn, depth: int = 3) -> RandomProgram:
    return _Writer(draw, depth).program()
