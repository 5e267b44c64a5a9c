"""Descriptions of keys: the parts that a compiler's key was made from, so that a miss can show the changed part.

A key is a hash. Its description is a small artifact: a name and a short text for each part, and the number of
occurrences of each operator. Texts are only compared and shown.
"""

from __future__ import annotations

import json
import re
import zlib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

from warmstore.errors import BadArtifact
from warmstore.identity.identity import differences

_MOST = 1 << 20  # bytes of a description, unpacked
_SHOWN = 120  # characters of a value
_FACT = "fact "  # the prefix of the names of parts that are facts of an identity
_NAMED = 3  # operators that a message names

_LINE = re.compile(r"\[(\w+)\] ([^:]+): (.*)", re.DOTALL)
_TENSOR = re.compile(r"dtype=torch\.(\w+), shape=torch\.Size\((\[.*?\])\), stride=\((.*?)\), device=device\((.*?)\)")
_GRADIENT = re.compile(r"requires_grad=(\w+)")
_WORD = re.compile(r"(?<![.\w])(?:[A-Za-z_]\w*|%[\w#]+)(?![\w(.])")
_ASSIGNED = re.compile(r"^\s*([A-Za-z_]\w*)(?:\s*:[^=]*)? = ")
_OPERATOR = re.compile(r"^\s*(?:[^=(]+ = )?(.*?)(?:;  .*)?$")
_PASSING = re.compile(r" at 0x[0-9a-f]+")
_SHAPED = re.compile(r"(?:tensor|array)<[^>]*>")
_MAIN = re.compile(r"@main\((.*?)\) ->", re.DOTALL)


@dataclass(frozen=True)
class KeyDescription:
    """The parts of a key, name to text, and its operators, name to number."""

    parts: Mapping[str, str]
    operators: Mapping[str, int] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """The stored form; the same for equal descriptions."""
        return zlib.compress(json.dumps([self.parts, self.operators], sort_keys=True).encode(), 6)

    @classmethod
    def from_bytes(cls, data: bytes) -> KeyDescription:
        """The inverse of `to_bytes`. Raises BadArtifact for other bytes."""
        try:
            parts, operators = json.loads(zlib.decompressobj().decompress(data, _MOST))
            return cls(
                {str(name): str(text) for name, text in parts.items()},
                {str(name): int(number) for name, number in operators.items()},
            )
        except (ValueError, TypeError, AttributeError, OverflowError, RecursionError, zlib.error) as error:
            raise BadArtifact(f"not the description of a key: {error}") from error

    def likeness(self, other: KeyDescription) -> float:
        """The share of operators that both have in common, from 0 to 1."""
        both = sum((Counter(self.operators) & Counter(other.operators)).values())
        most = max(sum(self.operators.values()), sum(other.operators.values()))
        return both / most if most else 1.0

    def changes_from(self, other: KeyDescription) -> list[str]:
        """The differences from `other`, the most informative first: inputs, program, then options."""
        names = [name for name in [*self.parts, *other.parts] if not name.startswith(_FACT)]
        changed = [name for name in dict.fromkeys(names) if self.parts.get(name) != other.parts.get(name)]
        inputs: dict[str, str] = {}  # the first change of each input: strides follow from the shape
        rest = []
        for name in changed:
            before, now = other.parts.get(name), self.parts.get(name)
            if not name.startswith("input "):
                rest.append(_change(name, before, now))
            elif ":" not in name or (before and now):  # otherwise one of the two is no tensor
                inputs.setdefault(name.partition(":")[0], _change(name, before, now))
        edits = differences(_facts(other.parts), _facts(self.parts))
        return [*edits, *inputs.values(), *self._operators_from(other), *rest]

    def _operators_from(self, other: KeyDescription) -> list[str]:
        new = Counter(self.operators) - Counter(other.operators)
        gone = Counter(other.operators) - Counter(self.operators)
        texts = []
        for word, operators in (("new", new), ("gone", gone)):
            if operators:
                more = f" and {len(operators) - _NAMED} more" if len(operators) > _NAMED else ""
                texts.append(f"{word} {', '.join(list(operators)[:_NAMED])}{more}")
        return [f"the program changed: {' and '.join(texts)}"] if texts else []


def of_torch(lines: Iterable[str]) -> KeyDescription:
    """The description of an Inductor or AOTAutograd key, from torch's debug lines."""
    parts: dict[str, str] = {}
    operators: Counter[str] = Counter()
    for line in lines:
        found = _LINE.fullmatch(line)
        if found is None:
            continue
        digest, name, text = found.groups()
        if name == "gm":
            head, *body = [row for row in text.splitlines() if row.strip() and not row.lstrip().startswith("#")]
            arguments = next((row for row in [head, *body] if row.startswith("def forward(")), "")
            names = {found[1] for row in body if (found := _ASSIGNED.match(row))} | set(_WORD.findall(arguments))
            operators += Counter(_operator(row, names) for row in body if " = " in row or "return" in row)
        elif name.startswith("example_inputs["):
            parts |= _input(name[len("example_inputs[") : -1], digest, text)
        else:
            parts[_part(name)] = _value(text, digest)
    return KeyDescription(parts, operators)


def of_source(content: str, command: str) -> KeyDescription:
    """The description of a C++ library: a hash of its source, and the words of the compiler's command."""
    words = Counter(f"command {word}" for word in command.split())
    return KeyDescription({word: str(number) for word, number in words.items()}, {f"source {_digest(content)}": 1})


def of_jax(program: str, options: bytes, flags: str) -> KeyDescription:
    """The description of a JAX program, from its MLIR text, serialised options of XLA, and the value of XLA_FLAGS."""
    parts = {"XLA_FLAGS": flags, "options of XLA": f"#{_digest(options.hex())}"}
    main = _MAIN.search(program)
    for number, kind in enumerate(re.findall(r"%arg\d+: (\S+?)(?:[,\s)]|$)", main[1] if main else "")):
        parts[f"input {number}: type"] = kind
    body = [_SHAPED.sub("", line) for line in program.splitlines() if " = " in line]
    return KeyDescription(parts, Counter(_operator(line.partition(" : ")[0]) for line in body))


def facts_as_parts(facts: Mapping[str, str]) -> dict[str, str]:
    """The facts of an identity as parts of a key."""
    return {f"{_FACT}{place}": text for place, text in facts.items()}


def _facts(parts: Mapping[str, str]) -> dict[str, str]:
    return {name.removeprefix(_FACT): text for name, text in parts.items() if name.startswith(_FACT)}


def _input(at: str, digest: str, text: str) -> dict[str, str]:
    tensor = _TENSOR.search(text)
    if tensor is None:
        return {f"input {at}": _value(text, digest)}
    dtype, shape, strides, device = tensor.groups()
    gradient = _GRADIENT.search(text)
    return {
        f"input {at}: shape": f"({shape[1:-1]})",
        f"input {at}: strides": f"({strides.rstrip(',')})",
        f"input {at}: dtype": dtype,
        f"input {at}: device": device,
        f"input {at}: gradient": gradient[1] if gradient else "",
        f"input {at}": f"tensor ({shape[1:-1]})#{_digest(text)}",
    }


def _part(name: str) -> str:
    base, bracket, rest = name.partition("[")
    known = {"inductor_config": "config", "autograd_config": "config functorch", "fx_kwargs": "option"}
    if base in known and bracket:
        return f"{known[base]} {rest[:-1]}"
    return {"torch_version": "torch's own sources", "aot_config": "where arguments come from"}.get(
        base, name.replace("_", " ")
    )


def _value(text: str, digest: str) -> str:
    """The text of a value, with its digest if the text was shortened."""
    short = _PASSING.sub("", _short(text))
    return short if short == text else f"{short}#{digest[:10]}"


def _operator(line: str, names: Collection[str] = ()) -> str:
    """A line of a graph without the names of variables, which change when a line is added."""
    found = _OPERATOR.match(line)
    text = (found[1] if found else line).strip().removeprefix("torch.ops.").replace(".default(", "(")
    return _short(_WORD.sub(lambda word: "_" if word[0] in names or word[0][0] == "%" else word[0], text))


def _change(name: str, before: str | None, now: str | None) -> str:
    old, new = ("none" if text is None else text.partition("#")[0] for text in (before, now))
    if name.startswith("command "):
        return f"{'gone from' if now is None else 'new in'} the compiler's {name}"
    if old == new or not old.isprintable() or old.endswith("...") or new.endswith("..."):
        return f"{name}: changed"
    return f"{name}{' ' if ': ' in name else ': '}{old} -> {new}"


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _digest(text: str) -> str:
    return blake2b(text.encode(), digest_size=5).hexdigest()


def summary(changes: Sequence[str], most: int = 6) -> tuple[str, ...]:
    """The first changes, and the number of the others."""
    more = len(changes) - most
    return (*changes[:most], *([f"{more} more"] if more > 0 else []))
