"""What a code object does, as a digest, and the names that it reads.

The digest is over the instructions with their constants, and names in the order of first use: line numbers, comments,
docstrings and names of local variables do not count. A use of a variable is a chain of attributes: `cfg.model.width`
is ("model", "width"). The empty chain is any other use of the variable, which makes the whole value count.
"""

from __future__ import annotations

import inspect
import opcode
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType
from typing import Any

import xxhash

from warmstore.identity.instructions import Instruction, instructions, jump_targets

Chain = tuple[str, ...]
WHOLE: Chain = ()

_WORD = re.compile(r"[^\W\d]\w*")

_LOCAL = ("FAST", "DEREF", "CELL", "CLOSURE")
"""Parts of the names of instructions whose argument is a local variable."""

_LOADS_GLOBAL = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")
_LOADS_LOCAL = ("LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_FAST_AND_CLEAR", "LOAD_FAST_BORROW")
_LOADS_FREE = ("LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF")
_LOADS_ATTRIBUTE = ("LOAD_ATTR", "LOAD_METHOD")
_STORES_LOCAL = ("STORE_FAST", "STORE_DEREF", "DELETE_FAST", "DELETE_DEREF")
_CONTAINS = opcode.opmap["CONTAINS_OP"]
_NEUTRAL_FLAGS = inspect.CO_NESTED | 0x4000000  # CO_HAS_DOCSTRING, from Python 3.13 on
_OF_CLASS_BODIES = ("__doc__", "__firstlineno__", "__static_attributes__", "__qualname__", "__module__")
_SEES_LOCAL_NAMES = frozenset(("locals", "vars", "dir"))
_QUERIES = frozenset(("eval", "execute", "query", "sql"))
"""Methods of tables whose texts name variables of the code that calls them: `df.query("a > @limit")`."""

_WRITERS = frozenset(
    ("dump", "imsave", "imwrite", "save", "save_file", "save_image", "save_model", "savefig", "savetxt", "savez",
     "savez_compressed", "to_csv", "to_excel", "to_feather", "to_html", "to_json", "to_parquet", "to_pickle",
     "write_csv", "write_html", "write_image", "write_json", "write_parquet")
)  # fmt: skip
"""Functions and methods that write the file that an argument names, and do not read it."""

_WRITING_MODES = frozenset(("w", "wb", "wt", "a", "ab", "at"))
"""Modes in which `open` does the same."""

_DECIMAL = 2000
"""Bits of constants that are written in decimal digits, of which Python takes 640 at least."""

_TAKE_TEXTS = _QUERIES | _WRITERS | {"open"}


@dataclass(frozen=True)
class CodeFacts:
    """The facts of a code object and of all code objects nested in it.

    digest: 16 hex digits. constants: texts of constants other than code and None. globals, variables: chains by name;
    `variables` are parameters, other locals and closure variables. stored: attributes that are set, by variable.
    imports: module, names and level of every import. bound: variables that imports set, with the module, the name in it
    ("" for the module itself) and the level. names: every name of an attribute or global. strings: constants that are
    strings or bytes, also within tuples. written: those of them that only name files to be written. quoted: variables
    that the text of a query may name. asked: variables and chains with the constant text that a subscript, a call or
    `in` takes first (`os.environ["A"]`), or None for any other use. passed: globals that are called, with globals that
    are their arguments, as chains that begin with the name. loose: names of attributes that are not read of a global.
    of_results: those that are not read of a variable at all. sees_locals: whether the code may read local variables by
    computed names.
    """

    digest: str
    constants: tuple[str, ...]
    globals: Mapping[str, frozenset[Chain]]
    variables: Mapping[str, frozenset[Chain]]
    stored: Mapping[str, frozenset[str]]
    imports: tuple[tuple[str, tuple[str, ...], int], ...]
    bound: tuple[tuple[str, str, str, int], ...]
    names: frozenset[str]
    strings: tuple[str, ...]
    written: frozenset[str]
    quoted: frozenset[str]
    asked: frozenset[tuple[str, Chain, str | None]]
    passed: frozenset[tuple[Chain, Chain]]
    loose: frozenset[str]
    of_results: frozenset[str]
    sees_locals: bool


@lru_cache(maxsize=1 << 14)
def facts_of(code: CodeType) -> CodeFacts:
    """The facts of a code object. Equal code objects have equal facts."""
    reader = _Reader()
    digest = reader.read(code)
    return CodeFacts(
        digest,
        tuple(reader.constants),
        {name: frozenset(chains) for name, chains in sorted(reader.globals.items())},
        {name: frozenset(chains) for name, chains in sorted(reader.variables.items())},
        {name: frozenset(names) for name, names in reader.stored.items()},
        tuple(dict.fromkeys(reader.imports)),
        tuple(dict.fromkeys(reader.bound)),
        frozenset(reader.names),
        tuple(dict.fromkeys(reader.strings)),
        frozenset(text for text, count in reader.written.items() if count == reader.loaded[text]),
        frozenset(_quoted(reader.strings) if reader.queries else ()),
        frozenset(reader.asked),
        frozenset(reader.passed),
        frozenset(reader.loose),
        frozenset(reader.of_results),
        bool(_SEES_LOCAL_NAMES & reader.names),
    )


def parameters_of(code: CodeType) -> tuple[str, ...]:
    """Names of all parameters, in order."""
    count = code.co_argcount + code.co_kwonlyargcount
    count += bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    return code.co_varnames[:count]


class _Reader:
    """Reads a code object and those nested in it. Variables of the same name count as one variable."""

    def __init__(self) -> None:
        self.constants: list[str] = []
        self.globals: dict[str, set[Chain]] = {}
        self.variables: dict[str, set[Chain]] = {}
        self.stored: dict[str, set[str]] = {}
        self.imports: list[tuple[str, tuple[str, ...], int]] = []
        self.bound: list[tuple[str, str, str, int]] = []
        self.names: set[str] = set()
        self.strings: list[str] = []
        self.loaded: Counter[str] = Counter()  # how often constants are loaded
        self.written: Counter[str] = Counter()  # and how often by calls that write files
        self.asked: set[tuple[str, Chain, str | None]] = set()
        self.passed: set[tuple[Chain, Chain]] = set()
        self.loose: set[str] = set()
        self.of_results: set[str] = set()
        self.queries = False  # whether the code calls a method of `_QUERIES` with arguments
        self.targets: frozenset[int] = frozenset()  # of jumps in the code that is being read

    def read(self, code: CodeType) -> str:
        """Collect the uses of names. Returns the digest of the code."""
        found = list(instructions(code))
        self.targets = jump_targets(code) if _CONTAINS in code.co_code[::2] else frozenset()
        self._uses(code, found)
        return self._digest(code, found)

    def _digest(self, code: CodeType, found: list[Instruction]) -> str:
        numbers: dict[tuple[str, str], int] = {}
        parts: list[str] = []
        skipped = _skipped(found)
        for at, instruction in enumerate(found):
            if at in skipped:
                continue
            value = instruction.value
            if "CONST" in instruction.name or instruction.name == "KW_NAMES":
                value = self._constant(value)
            elif isinstance(value, str) and any(part in instruction.name for part in _LOCAL):
                value = numbers.setdefault(("local", value), len(numbers))  # by order, not by name
            parts.append(f"{instruction.name} {value}")
        parameters = parameters_of(code)
        head = (
            code.co_flags & ~_NEUTRAL_FLAGS, code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount,
            parameters, [numbers.get(("local", name)) for name in parameters],
            [numbers.get(("local", name)) for name in code.co_freevars],
            code.co_exceptiontable.hex(), code.co_varnames if _SEES_LOCAL_NAMES & set(code.co_names) else (),
        )  # fmt: skip
        return xxhash.xxh3_64_hexdigest("\n".join((repr(head), *parts)).encode("utf-8", "surrogatepass"))

    def _constant(self, value: object) -> str:
        if isinstance(value, CodeType):
            return f"code {value.co_name} {self.read(value)}"
        text = constant_text(value)
        if value is not None and text not in self.constants:
            self.constants.append(text)
        self.strings += _strings_in(value)
        return text

    def _uses(self, code: CodeType, found: list[Any]) -> None:
        cells = {*code.co_cellvars, *code.co_freevars}
        named: set[int] = set()  # positions of attributes that are read of globals
        of_locals: set[int] = set()
        self.names |= {*code.co_names}
        if "__class__" in code.co_freevars:  # super() without arguments uses both
            for name in ("__class__", *code.co_varnames[:1]):
                self.variables.setdefault(name, set()).add(WHOLE)
        for at, (instruction, value) in enumerate(found):
            if instruction in _LOADS_LOCAL or instruction in _LOADS_FREE:
                if value in cells and instruction in _LOADS_LOCAL:
                    continue  # from Python 3.13 on: a nested function gets the cell
                chains = self._chain(found, at)
                self.variables.setdefault(value, set()).update(chains)
                of_locals.update(range(at + 1, at + 1 + max(map(len, chains), default=0)))
            elif instruction == "LOAD_CONST":
                if value is not None:
                    self.loaded.update(_strings_in(value))
            elif instruction in _LOADS_GLOBAL:
                chains = self._chain(found, at)
                self.globals.setdefault(value, set()).update(chains)
                last = at + max(map(len, chains), default=0)
                named.update(range(at + 1, last + 1))
                self._call(found, at, last)
            elif instruction in _STORES_LOCAL:
                # The variable has another value afterwards.
                self.variables.setdefault(value, set()).add(WHOLE)
            elif instruction == "IMPORT_NAME":
                self._import(found, at)
            elif instruction in _LOADS_ATTRIBUTE:
                if value in _TAKE_TEXTS:
                    self._texts(found, at)
                if at not in named:
                    self.loose.add(value)
                    if at not in of_locals:
                        self.of_results.add(value)

    def _call(self, found: list[Any], at: int, last: int) -> None:
        """Collect the arguments of a call of the global that instruction `at` loads, or of its attribute at `last`."""
        if found[at][1] in _TAKE_TEXTS:
            self._texts(found, at)
        for argument in _arguments_of_call(found, last):
            if found[argument][0] in _LOADS_GLOBAL:
                self.passed.add((_dotted(found, at), _dotted(found, argument)))

    def _texts(self, found: list[Any], at: int) -> None:
        """Collect the texts that a function takes which writes files or runs queries."""
        name = found[at][1]
        texts = [found[argument][1] for argument in _arguments_of_call(found, at)]
        texts = [text for text in texts if isinstance(text, str)]
        if name in _QUERIES:
            self.queries |= found[at + 1 : at + 2] != [("CALL", 0)]
        elif name == "open":
            mode = next((number for number, text in enumerate(texts) if text in _WRITING_MODES), 0)
            self.written.update(texts[:mode])
        else:
            self.written.update(texts)

    def _chain(self, found: list[Any], at: int) -> set[Chain]:
        """The attributes that are read of the value that instruction `at` loads."""
        following, name = found[at + 1]
        if following in ("STORE_ATTR", "DELETE_ATTR"):
            self.stored.setdefault(found[at][1], set()).add(name)
            return set()
        if following == "COPY" and name == 1 and found[at + 2][0] in _LOADS_ATTRIBUTE:
            self.stored.setdefault(found[at][1], set()).add(found[at + 2][1])  # self.x += 1
            return {(found[at + 2][1],)}
        variable, *chain = _dotted(found, at)
        self.asked.add((variable, tuple(chain), self._asked_for(found, at, at + 1 + len(chain))))
        return {tuple(chain)}

    def _asked_for(self, found: list[Any], at: int, after: int) -> str | None:
        """The constant of a look-up by name: `environ["A"]`, `getenv("A")`, `"A" in environ`."""
        following, constant = found[after]
        if following == "CONTAINS_OP" and at:
            # `(A or "B") in environ` jumps to what follows the constant.
            following, constant = found[at - 1] if at not in self.targets else (following, None)
        elif following != "LOAD_CONST" or not isinstance(constant, str) or not _is_looked_up(found, after):
            return None
        return constant if following == "LOAD_CONST" and isinstance(constant, str) else None

    def _import(self, found: list[Instruction], at: int) -> None:
        level = next((load.value for load in found[max(at - 2, 0) : at] if isinstance(load.value, int)), 0)
        names = found[at - 1].value if at else None
        listed = tuple(map(str, names)) if isinstance(names, tuple) else ()
        level = level if isinstance(level, int) else 0
        module = str(found[at].value)
        self.imports.append((module, listed, level))
        stored = [step for step in found[at + 1 : at + 5] if step.name.startswith("STORE_")][:1]
        if not listed and stored:  # `import a.b` sets `a`, and `import a.b as c` sets `c` to the inner module
            module = module if found[at + 1].name == "IMPORT_FROM" else module.partition(".")[0]
            self.bound.append((str(stored[0].value), module, "", level))
        for name, store in zip(found[at + 1 :: 2], found[at + 2 :: 2], strict=False):
            if not listed or name.name != "IMPORT_FROM" or not store.name.startswith("STORE_"):
                break
            self.bound.append((str(store.value), module, str(name.value), level))


_SUBSCRIPT = next((number for number, names in enumerate(opcode._nb_ops) if names[1] == "[]"), None)  # type: ignore[attr-defined]
_EFFECTS: dict[str, tuple[int, int]] = {
    "PUSH_NULL": (0, 0), "KW_NAMES": (0, 0), "LOAD_ATTR": (1, 1), "LOAD_METHOD": (1, 1), "BINARY_OP": (2, 1),
    "BINARY_SUBSCR": (2, 1), "COMPARE_OP": (2, 1), "CONTAINS_OP": (2, 1), "IS_OP": (2, 1), "STORE_SUBSCR": (3, 0),
    "DELETE_SUBSCR": (2, 0), "UNARY_NEGATIVE": (1, 1), "UNARY_NOT": (1, 1), "TO_BOOL": (1, 1), "FORMAT_SIMPLE": (1, 1),
    "CONVERT_VALUE": (1, 1), "FORMAT_WITH_SPEC": (2, 1),
}  # fmt: skip
"""How many values instructions take from the stack and put there. A callable counts as one, with its self or NULL."""

_COUNTED = {"CALL": 1, "CALL_KW": 2, "BUILD_STRING": 0, "BUILD_LIST": 0, "BUILD_TUPLE": 0, "BUILD_SET": 0}
"""Instructions that take as many values as their argument says, and so many more."""


def _is_looked_up(found: list[Instruction], at: int) -> bool:
    """Whether the value that instruction `at` loads is itself the key of a subscript, or the first argument of a call,
    of what was loaded before it; and no part of a computed name. No where code jumps in between."""
    depth = 1
    for position in range(at + 1, len(found)):
        name, argument = found[position]
        taken, put = _EFFECTS.get(name, (0, 1) if name.startswith("LOAD_") else (-1, 0))
        if name in _COUNTED and isinstance(argument, int):
            taken, put = argument + _COUNTED[name], 1
        if taken >= depth:
            before, names = found[position - 1]  # perhaps the names of keyword arguments
            count = len(names) if isinstance(names, tuple) and "KW" in name + before else 0
            is_subscript = name.endswith("_SUBSCR") or (name == "BINARY_OP" and argument == _SUBSCRIPT)
            is_call = name in ("CALL", "CALL_KW") and isinstance(argument, int) and argument > count
            return taken == depth + 1 and (is_subscript or is_call)
        if taken < 0:
            return False
        depth += put - taken
    return False


def _dotted(found: list[Any], at: int) -> Chain:
    """The variable that instruction `at` loads, and the attributes that are read of it one after another."""
    after = at + 1
    while found[after][0] in _LOADS_ATTRIBUTE:  # a load is never the last instruction
        after += 1
    return tuple([value for _, value in found[at:after]])


def _arguments_of_call(found: list[Any], at: int) -> list[int]:
    """The positions of the constants and globals in the arguments of the call of what instruction `at` loads.

    Those in the arguments of other calls among them are left out. None where code jumps in between.
    """
    stack: list[list[int]] = []
    for position in range(at + 1, len(found)):
        name, value = found[position]
        taken, put = _EFFECTS.get(name, (0, 1) if name.startswith("LOAD_") else (-1, 0))
        if name in _COUNTED and isinstance(value, int):
            taken, put = value + _COUNTED[name], 1
        is_call = name in ("CALL", "CALL_KW")
        if taken > len(stack):
            return [part for parts in stack for part in parts] if is_call and taken == len(stack) + 1 else []
        if taken < 0:
            return []
        parts = [part for parts in stack[len(stack) - taken :] for part in parts]
        del stack[len(stack) - taken :]
        stack += [[position] if name == "LOAD_CONST" or name in _LOADS_GLOBAL else [] if is_call else parts] * put
    return []


def _skipped(found: list[Instruction]) -> set[int]:
    """The positions of instructions that set the docstring or other metadata of a class."""
    skipped: set[int] = set()
    for at, instruction in enumerate(found):
        is_metadata = instruction.name == "STORE_NAME" and instruction.value in _OF_CLASS_BODIES
        if is_metadata and at and "CONST" in found[at - 1].name:
            skipped |= {at - 1, at}
    return skipped


def _strings_in(value: object) -> list[str]:
    """The strings in a constant, and its bytes as strings, as they may name a file."""
    if isinstance(value, tuple | frozenset):
        return sorted(string for item in value for string in _strings_in(item))
    return [value] if isinstance(value, str) else [os.fsdecode(value)] if isinstance(value, bytes) else []


def _quoted(texts: Iterable[str]) -> set[str]:
    """The words of the texts that are more than one word."""
    return {word for text in texts if not text.isidentifier() for word in _WORD.findall(text)}


def constant_text(value: object) -> str:
    """The text of a constant, with its type and value."""
    if isinstance(value, tuple):
        return f"({', '.join(map(constant_text, value))},)"
    if isinstance(value, frozenset):
        return f"frozenset({sorted(map(constant_text, value))})"
    return hex(value) if type(value) is int and value.bit_length() > _DECIMAL else repr(value)
