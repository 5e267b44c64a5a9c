"""Kinds of constants in every place where a program may have one, below each form of what is compiled."""

from __future__ import annotations

from itertools import product

from tests.compiling.edits.cases import Case

_KINDS = {  # before, after, and what is computed of it: few kernels in all, since each takes a second to compile
    "int": ("2", "3", "x * {}"),
    "float": ("2.0", "3.0", "x * {}"),
    "str": ("'sin'", "'cos'", "getattr(torch, {})(x)"),
    "bool": ("True", "False", "(x * 2.0 if {} else x * 3.0)"),
    "none": ("None", "3.0", "(x * 2.0 if {0} is None else x * {0})"),
    "tuple": ("(2.0, 'a')", "(3.0, 'a')", "x * {}[0]"),
    "dict": ("{'a': 2.0, 'b': 1}", "{'a': 3.0, 'b': 1}", "x * {}['a']"),
    "list": ("[1, 1]", "[1, 2]", "x * sum({})"),
    "type": ("1", "1.5", "(x * 2.0 if isinstance({}, int) else x * 3.0)"),
}

_PLACES: dict[str, tuple[str, str, str]] = {  # what comes before `value(x, self)`, its body, and the live change
    "literal": ("", "return USE(VALUE)", "m.value.__code__ = n.value.__code__"),
    "global": ("K = VALUE\n", "return USE(K)", "m.K = AFTER"),
    "imported": ("from OTHER import K\n### other\nK = VALUE\n", "return USE(K)", "m.K = AFTER"),
    "through_module": ("import OTHER\n### other\nK = VALUE\n", "return USE(OTHER.K)", "m.OTHER.K = AFTER"),
    "default": ("def inner(x, k=VALUE):\n    return USE(k)\n", "return inner(x)", "m.inner.__defaults__ = (AFTER,)"),
    "keyword_default": (
        "def inner(x, *, k=VALUE):\n    return USE(k)\n",
        "return inner(x)",
        "m.inner.__kwdefaults__ = {'k': AFTER}",
    ),
    "closure": (
        "def outer(k):\n    def inner(x):\n        return USE(k)\n    return inner\ninner = outer(VALUE)\n",
        "return inner(x)",
        "m.inner.__closure__[0].cell_contents = AFTER",
    ),
    "nested_closure": (
        "def outer(k):\n    def middle():\n        def inner(x):\n            return USE(k)\n        return inner\n"
        "    return middle()\ninner = outer(VALUE)\n",
        "return inner(x)",
        "m.inner = m.outer(AFTER)",
    ),
    "partial": (
        "from functools import partial\ndef inner(k, x):\n    return USE(k)\npart = partial(inner, VALUE)\n",
        "return part(x)",
        "m.part = m.partial(m.inner, AFTER)",
    ),
    "partial_keyword": (
        "from functools import partial\ndef inner(x, k):\n    return USE(k)\npart = partial(inner, k=VALUE)\n",
        "return part(x)",
        "m.part.keywords['k'] = AFTER",
    ),
    "class_attribute": ("class Cfg:\n    k = VALUE\n", "return USE(Cfg.k)", "m.Cfg.k = AFTER"),
    "base_attribute": (
        "class Base:\n    k = VALUE\nclass Cfg(Base):\n    pass\n",
        "return USE(Cfg.k)",
        "m.Base.k = AFTER",
    ),
    "instance_attribute": (
        "class Cfg:\n    def __init__(self):\n        self.k = VALUE\ncfg = Cfg()\n",
        "return USE(cfg.k)",
        "m.cfg.k = AFTER",
    ),
    "slots": (
        "class Cfg:\n    __slots__ = ('k',)\n    def __init__(self):\n        self.k = VALUE\ncfg = Cfg()\n",
        "return USE(cfg.k)",
        "m.cfg.k = AFTER",
    ),
    "property": (
        "class Cfg:\n    @property\n    def k(self):\n        return VALUE\ncfg = Cfg()\n",
        "return USE(cfg.k)",
        "m.Cfg.k = property(lambda self: AFTER)",
    ),
    "dataclass": (
        "from dataclasses import dataclass, field\n@dataclass\nclass Cfg:\n"
        "    k: object = field(default_factory=lambda: VALUE)\ncfg = Cfg()\n",
        "return USE(cfg.k)",
        "m.cfg.k = AFTER",
    ),
    "namedtuple": (
        "from typing import NamedTuple\nclass Cfg(NamedTuple):\n    k: object\ncfg = Cfg(VALUE)\n",
        "return USE(cfg.k)",
        "m.cfg = m.Cfg(AFTER)",
    ),
    "function_attribute": (
        "def inner(x):\n    return USE(inner.k)\ninner.k = VALUE\n",
        "return inner(x)",
        "m.inner.k = AFTER",
    ),
    "dict_item": ("table = {'k': VALUE}\n", "return USE(table['k'])", "m.table['k'] = AFTER"),
    "list_item": ("table = [0, VALUE]\n", "return USE(table[1])", "m.table[1] = AFTER"),
    "globals": ("K = VALUE\n", "return USE(globals()['K'])", "m.K = AFTER"),
    "class_method": (
        "class Cfg:\n    @classmethod\n    def k(cls):\n        return VALUE\n",
        "return USE(Cfg.k())",
        "m.Cfg.k = classmethod(lambda cls: AFTER)",
    ),
    "static_method": (
        "class Cfg:\n    @staticmethod\n    def k():\n        return VALUE\n",
        "return USE(Cfg.k())",
        "m.Cfg.k = staticmethod(lambda: AFTER)",
    ),
    "enum": (
        "import enum\nclass Cfg(enum.Enum):\n    K = VALUE\n    J = object()\n",
        "return USE(Cfg.K.value)",
        "m.Cfg = n.Cfg",
    ),
    "lambda": ("inner = lambda x: USE(VALUE)\n", "return inner(x)", "m.inner = n.inner"),
}  # fmt: skip

_ROOTS = {
    "module": "class Model(nn.Module):\n    def forward(self, x):\n        return value(x)\n",
    "function": "def root(x):\n    return value(x)\n",
    "child": (
        "class Child(nn.Module):\n    def forward(self, x):\n        return value(x)\n"
        "class Model(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.layers = nn.Sequential(Child(), nn.Identity())\n"
        "    def forward(self, x):\n        return self.layers(x)\n"
    ),
    "broken": (
        "class Model(nn.Module):\n    def forward(self, x):\n        torch._dynamo.graph_break()\n"
        "        return value(x)\n"
    ),
}

_MODEL_PLACES = {  # places within what is compiled; these have no function `value`
    "own_class": (
        "class Model(nn.Module):\n    k = VALUE\n    def forward(self, x):\n        return USE(self.k)\n",
        "m.Model.k = AFTER",
    ),
    "own_base": (
        "class Base(nn.Module):\n    k = VALUE\n"
        "class Model(Base):\n    def forward(self, x):\n        return USE(self.k)\n",
        "m.Base.k = AFTER",
    ),
    "own_mixin": (
        "class Mixin:\n    k = VALUE\n"
        "class Model(Mixin, nn.Module):\n    def forward(self, x):\n        return USE(self.k)\n",
        "m.Mixin.k = AFTER",
    ),
    "own_instance": (
        "class Model(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.k = VALUE\n"
        "    def forward(self, x):\n        return USE(self.k)\n",
        "root.k = AFTER",
    ),
    "own_default": (
        "class Model(nn.Module):\n    def forward(self, x, k=VALUE):\n        return USE(k)\n",
        "m.Model.forward.__defaults__ = (AFTER,)",
    ),
    "own_keyword": (
        "class Model(nn.Module):\n    def forward(self, x, *, k=VALUE):\n        return USE(k)\n",
        "m.Model.forward.__kwdefaults__ = {'k': AFTER}",
    ),
    "own_method": (
        "class Model(nn.Module):\n    def k(self):\n        return VALUE\n"
        "    def forward(self, x):\n        return USE(self.k())\n",
        "m.Model.k = lambda self: AFTER",
    ),
    "root_default": ("def root(x, k=VALUE):\n    return USE(k)\n", "m.root.__defaults__ = (AFTER,)"),
    "root_closure": (
        "def outer(k):\n    def inner(x):\n        return USE(k)\n    return inner\nroot = outer(VALUE)\n",
        "m.root.__closure__[0].cell_contents = AFTER",
    ),
    "root_literal": ("def root(x):\n    return USE(VALUE)\n", "m.root.__code__ = n.root.__code__"),
    "own_literal": (
        "class Model(nn.Module):\n    def forward(self, x):\n        return USE(VALUE)\n",
        "m.Model.forward = n.Model.forward",
    ),
}  # fmt: skip


def cases() -> list[Case]:
    """Each kind in each place below each root."""
    found = []
    for (place, (text, body, live)), (root, end), kind in product(_PLACES.items(), _ROOTS.items(), _KINDS):
        if root != "module" and kind not in ("int", "str", "dict"):
            continue
        top, _, other = text.partition("### other\n")
        program = f"{top}def value(x):\n    {body}\n{end}" + ("### other\n" + other if other else "")
        found.append(_case(f"{place}_{kind}_{root}", program, live, kind))
    for (place, (text, live)), kind in product(_MODEL_PLACES.items(), _KINDS):
        found.append(_case(f"{place}_{kind}", text, live, kind))
    return found


def _case(name: str, text: str, live: str, kind: str) -> Case:
    before, after, use = _KINDS[kind]
    start, *rest = text.split("USE(")
    for part in rest:
        depth, at = 1, 0
        while depth:
            depth += {"(": 1, ")": -1}.get(part[at], 0)
            at += 1
        start += use.format(part[: at - 1]) + part[at:]
    name, other = f"grid_{name}", f"grid_{name}_other"
    text = start.replace("VALUE", f"«{before}»«{after}»").replace("OTHER", other)
    return Case("grid", name, text, live.replace("AFTER", after).replace("OTHER", other))
