"""Readers of CSV and JSON lines with a schema."""

import csv
import datetime
import io
import json
import operator
from collections import defaultdict
from dataclasses import dataclass, field, fields
from decimal import Decimal
from enum import Flag, auto
from functools import partial, singledispatch

TRUE = {"true", "yes", "1"}
FORMATS = ["%Y-%m-%d", "%d.%m.%Y"]
OPERATORS = {"<": operator.lt, ">=": operator.ge, "==": operator.eq}


class Check(Flag):
    NONE = 0
    REQUIRED = auto()
    POSITIVE = auto()
    STRICT = REQUIRED | POSITIVE


class Converters(dict):
    """Type name to converter; an unknown type is kept as text."""

    fallback = str.strip

    def __missing__(self, name):
        return type(self).fallback


CONVERT = Converters(int=int, float=float, decimal=Decimal)


def converter(name):
    def add(function):
        CONVERT[name] = function
        return function

    return add


@converter("bool")
def to_bool(text):
    return text.strip().lower() in TRUE


@converter("date")
def to_date(text):
    for pattern in FORMATS:
        try:
            return datetime.datetime.strptime(text.strip(), pattern).date()
        except ValueError:
            continue
    raise ValueError(f"no date: {text!r}")


@dataclass(frozen=True)
class Column:
    name: str
    type: str = "text"
    check: Check = Check.NONE
    default: object = None

    def read(self, text):
        if text is None or text == "":
            if Check.REQUIRED in self.check:
                raise ValueError(f"{self.name} is missing")
            return self.default
        value = CONVERT[self.type](text)
        if Check.POSITIVE in self.check and value <= 0:
            raise ValueError(f"{self.name} is {value}, and should be positive")
        return value


@dataclass
class Schema:
    columns: list
    renamed: dict = field(default_factory=dict)

    def read(self, row):
        return {
            column.name: column.read(row.get(self.renamed.get(column.name, column.name))) for column in self.columns
        }


def read_csv(text, schema, delimiter=",", comment="#"):
    """Rows of `schema`, and what is wrong by line."""
    lines = (line for line in io.StringIO(text) if not line.startswith(comment))
    rows, errors = [], {}
    for number, row in enumerate(csv.DictReader(lines, delimiter=delimiter, skipinitialspace=True), start=2):
        try:
            rows.append(schema.read(row))
        except ValueError as error:
            errors[number] = str(error)
    return {"rows": rows, "errors": errors}


def rows_of(text, schema):
    return read_csv(text, schema)["rows"]


@singledispatch
def plain(value):
    return value


@plain.register(Decimal)
def _(value):
    return f"{value:.2f}"


@plain.register(datetime.date)
def _(value):
    return value.isoformat()


@plain.register(dict)
def _(value):
    return {name: plain(inner) for name, inner in value.items()}


def to_json_lines(text, schema, indent=None):
    return "\n".join(json.dumps(plain(row), sort_keys=True, indent=indent) for row in rows_of(text, schema))


def select(text, schema, where=(), columns=None):
    """Rows for which all of `where`, triples (column, operator, value), hold."""
    found = rows_of(text, schema)
    for name, sign, value in where:
        found = [row for row in found if row[name] is not None and OPERATORS[sign](row[name], value)]
    return [tuple(row[name] for name in columns or row) for row in found]


@dataclass
class Summary:
    count: int = 0
    total: float = 0.0
    largest: float = float("-inf")

    def add(self, value):
        self.count += 1
        self.total += value
        self.largest = max(self.largest, value)

    @property
    def mean(self):
        return self.total / self.count if self.count else 0.0


def group(text, schema, by, value, make=Summary):
    groups = defaultdict(make)
    for row in rows_of(text, schema):
        groups[row[by]].add(float(row[value] or 0))
    return {str(key): (summary.mean, *vars(summary).values()) for key, summary in groups.items()}


class JsonLines:
    """Reads JSON lines into objects of a dataclass; keys that it does not know are kept apart."""

    aliases = {"identifier": "id", "weight_kg": "weight"}

    def __init__(self, cls, strict=False):
        self.cls = cls
        self.strict = strict
        self.names = [one.name for one in fields(cls)]

    def _row(self, raw):
        named = {self.aliases.get(key, key): value for key, value in raw.items()}
        extra = {key: named.pop(key) for key in list(named) if key not in self.names}
        if extra and self.strict:
            raise ValueError(f"unknown keys: {sorted(extra)}")
        return self.cls(**named), extra

    def __call__(self, text):
        return [self._row(json.loads(line)) for line in text.splitlines() if line.strip()]


@dataclass(order=True)
class Parcel:
    weight: float
    id: int = 0
    tags: tuple = ()

    def __post_init__(self):
        self.tags = tuple(sorted(self.tags))

    @property
    def heavy(self):
        return self.weight > 10


class Sorted:
    """Reads with another reader and sorts what it gives."""

    def __init__(self, reader, reverse=False):
        self.reader = reader
        self.reverse = reverse

    def __call__(self, text):
        return [
            (parcel, parcel.heavy) for parcel in sorted((one for one, _ in self.reader(text)), reverse=self.reverse)
        ]


SCHEMA = Schema(
    [
        Column("id", "int", Check.STRICT),
        Column("price", "decimal", Check.POSITIVE, default=Decimal("9.99")),
        Column("sold", "date"),
        Column("new", "bool", default=False),
        Column("shop", check=Check.REQUIRED),
    ],
    renamed={"shop": "store"},
)


def entries():
    return {
        "read_csv": partial(read_csv, schema=SCHEMA),
        "read_semicolons": partial(
            read_csv, schema=Schema([Column("id, price, sold, new, store")]), delimiter=";", comment="2"
        ),
        "to_json_lines": partial(to_json_lines, schema=SCHEMA),
        "select": partial(select, schema=SCHEMA, where=[("price", ">=", Decimal(5)), ("id", "<", 8)]),
        "select_columns": partial(select, schema=SCHEMA, where=[("new", "==", True)], columns=["shop", "id"]),
        "group": partial(group, schema=SCHEMA, by="shop", value="price"),
        "json_lines": JsonLines(Parcel),
        "json_lines_sorted": Sorted(JsonLines(Parcel), reverse=True),
    }


def examples():
    table = (
        "id, price, sold, new, store\n# exported\n1, 4.50, 2024-05-01, yes, north\n2, , 03.06.2024, no, south\n"
        "3, 12.25, , 1, north\n-4, 1, , , south\n5, 7, 2024-13-01, true, north\n6, 8.125, 2023-01-09, TRUE,\n"
        "7, 19, 2024-01-02, no, south\n9, 30, , yes, south\n"
    )
    lines = (
        '{"identifier": 3, "weight": 4.5, "tags": ["b", "a"]}\n\n'
        '{"id": 1, "weight_kg": 12.0, "color": "red"}\n{"weight": 10.5}\n'
    )
    return {"*": (table,), "json_lines": (lines,), "json_lines_sorted": (lines,)}
