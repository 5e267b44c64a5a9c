"""Edits of objects and of the classes they are of: state, methods, bases, metaclasses, descriptors, fields."""

from tests.identity.edits.edit import Edit


def _swap(name: str, value: str, reading: str, setup: str, before: str, after: str, **options: object) -> Edit:
    """An edit of a class's text: `before` stands in it, and `after` takes its place."""
    assert before in setup, name
    return Edit(name, value, None, reading, setup=setup, setup_new=setup.replace(before, after), **options)  # type: ignore[arg-type]


_CONFIG = """
    class Config:
        '''What is set.'''

        limit = 5

        def __init__(self, n):
            self.n = n

        def twice(self):
            return self.n * 2
"""
_ENUM = """
    class Color(enum.Enum):
        RED = 3
        BLUE = 4

        def shade(self):
            return self.value + 1
"""
_POINT = """
    class Point(typing.NamedTuple):
        a: int = 3
        b: int = 4

        def total(self):
            return self.a * 10 + self.b
"""
_DATA = """
    @dataclasses.dataclass
    class Data:
        a: int = 3
        b: int = 4
        c: list = dataclasses.field(default_factory=lambda: [5])

        def total(self):
            return self.a * 10 + self.b
"""
_META = """
    class Meta(type):
        def __call__(cls, *args):
            made = super().__call__(*args)
            made.n += 1
            return made

        @property
        def size(cls):
            return 7

        def __getattr__(cls, name):
            return 8

        def __getitem__(cls, item):
            return 9


    class Thing(metaclass=Meta):
        def __init__(self, n):
            self.n = n
"""
_BASES = """
    class Root:
        def value(self):
            return 1


    class Left(Root):
        def value(self):
            return super().value() * 2


    class Right(Root):
        def value(self):
            return super().value() + 10


    class Leaf(Left, Right):
        def value(self):
            return super().value() + 100
"""
_DESCRIPTOR = """
    class Scaled:
        def __set_name__(self, owner, name):
            self.hidden = "_" + name

        def __get__(self, one, owner=None):
            return getattr(one, self.hidden) * 2

        def __set__(self, one, value):
            setattr(one, self.hidden, value)


    class Config:
        n = Scaled()

        def __init__(self, n):
            self.n = n
"""

EDITS = [
    Edit("attribute of an object", "Config(3)", "Config(4)", "v.n", _CONFIG, change="v.n = 4"),
    Edit("attribute that a method reads", "Config(3)", "Config(4)", "v.twice()", _CONFIG, change="v.n = 4"),
    _swap("method", "Config(3)", "v.twice()", _CONFIG, "self.n * 2", "self.n * 3",
          change="type(v).twice = lambda self: self.n * 3"),
    _swap("class attribute of an object's class", "Config(3)", "v.limit", _CONFIG, "limit = 5", "limit = 6",
          change="type(v).limit = 6"),
    Edit("class as a value", "Config", None, "v(2).twice()", _CONFIG, _CONFIG.replace("* 2", "* 3"),
         change="v.twice = lambda self: self.n * 3"),
    Edit("attribute that hides a method", "Config(3)", None, "v.twice()", _CONFIG,
         _CONFIG.replace("self.n = n", "self.n = n\n            self.twice = lambda: 9"), change="v.twice = lambda: 9"),
    Edit("docstring that is read", "Config(3)", None, "len(type(v).__doc__)", _CONFIG,
         _CONFIG.replace("What is set.", "What was set."), change="type(v).__doc__ = 'What was set.'"),
    Edit("annotation of a class that is read", "Config(3)", None, "'int' in str(typing.get_type_hints(type(v)))",
         "class Config:\n    a: int\n\n    def __init__(self, n):\n        pass\n",
         "class Config:\n    a: str\n\n    def __init__(self, n):\n        pass\n",
         change="type(v).__annotations__['a'] = str"),
    Edit("name of a class that is read", "Config(3)", "Other(3)", "len(type(v).__name__)",
         _CONFIG + "\n\n    class Other(Config):\n        pass\n"),
    _swap("property", "C(3)", "v.m", "class C:\n    def __init__(self, n):\n        self.n = n\n\n    @property\n"
          "    def m(self):\n        return self.n + 1\n", "+ 1", "+ 2",
          change="type(v).m = property(lambda self: self.n + 2)"),
    _swap("cached property", "C()", "v.m", "class C:\n    @functools.cached_property\n    def m(self):\n"
          "        return 1\n", "return 1", "return 2"),
    _swap("static method", "C()", "v.m()", "class C:\n    @staticmethod\n    def m():\n        return 1\n",
          "return 1", "return 2", change="type(v).m = staticmethod(lambda: 2)"),
    _swap("class method", "C()", "v.m()", "class C:\n    n = 1\n\n    @classmethod\n    def m(cls):\n"
          "        return cls.n + 1\n", "+ 1", "+ 2"),
    _swap("class attribute that a class method reads", "C()", "v.m()",
          "class C:\n    n = 1\n\n    @classmethod\n    def m(cls):\n        return cls.n + 1\n", "n = 1", "n = 2",
          change="type(v).n = 2"),
    _swap("base class method", "Leaf()", "v.value()", _BASES, "return 1", "return 2",
          change="Root = type(v).__mro__[-2]; Root.value = lambda self: 2"),
    _swap("middle of a super chain", "Leaf()", "v.value()", _BASES, "+ 10", "+ 20"),
    _swap("order of bases", "Leaf()", "v.value()", _BASES, "(Left, Right)", "(Right, Left)",
          change="Left, Right = type(v).__bases__; type(v).__bases__ = (Right, Left)"),
    _swap("metaclass call", "Thing(3)", "v.n", _META, "made.n += 1", "made.n += 2"),
    _swap("metaclass call on a class", "Thing", "v(3).n", _META, "made.n += 1", "made.n += 2"),
    _swap("metaclass property", "Thing", "v.size", _META, "return 7", "return 17",
          change="type(v).size = property(lambda cls: 17)"),
    _swap("metaclass getattr", "Thing", "v.anything", _META, "return 8", "return 18",
          change="type(v).__getattr__ = lambda cls, name: 18"),
    _swap("metaclass getitem", "Thing", "v[1]", _META, "return 9", "return 19"),
    _swap("descriptor", "Config(3)", "v.n", _DESCRIPTOR, "* 2", "* 3"),
    _swap("name that a descriptor takes", "Config(3)", "[*vars(v)][0].count('_')", _DESCRIPTOR, '"_" + name',
          '"__" + name'),
    _swap("own getattr", "C()", "v.missing", "class C:\n    def __getattr__(self, name):\n"
          "        if name != 'missing':\n            raise AttributeError(name)\n        return 3\n",
          "return 3", "return 4", change="type(v).__getattr__ = lambda self, name: 4"),
    _swap("own getattribute", "C()", "v.n", "class C:\n    n = 1\n\n    def __getattribute__(self, name):\n"
          "        return 3 if name == 'n' else super().__getattribute__(name)\n", "return 3", "return 4"),
    _swap("own getitem", "C()", "v[2]", "class C:\n    def __getitem__(self, at):\n        return at + 1\n",
          "+ 1", "+ 2", change="type(v).__getitem__ = lambda self, at: at + 2"),
    _swap("own len", "C()", "len(v)", "class C:\n    def __len__(self):\n        return 3\n", "3", "4",
          change="type(v).__len__ = lambda self: 4"),
    _swap("own bool", "C()", "1 if v else 0", "class C:\n    def __bool__(self):\n        return True\n",
          "True", "False"),
    _swap("own call", "C()", "v(1)", "class C:\n    def __call__(self, x):\n        return x + 1\n", "+ 1", "+ 2",
          change="type(v).__call__ = lambda self, x: x + 2"),
    _swap("own equality", "C()", "v == 3", "class C:\n    def __eq__(self, other):\n        return True\n\n"
          "    __hash__ = None\n", "True", "False"),
    _swap("own add", "C()", "v + 1", "class C:\n    def __add__(self, x):\n        return x + 1\n", "+ 1", "+ 2"),
    _swap("own float", "C()", "v", "class C:\n    def __float__(self):\n        return 1.0\n", "1.0", "2.0"),
    _swap("own iter", "C()", "sum(v)", "class C:\n    def __iter__(self):\n        yield 3\n", "yield 3", "yield 4"),
    _swap("own contains", "C()", "3 in v", "class C:\n    def __contains__(self, x):\n        return x == 3\n",
          "== 3", "== 4"),
    _swap("own context manager", "C()", "entered(v)", "class C:\n    def __enter__(self):\n        return 3\n\n"
          "    def __exit__(self, *error):\n        pass\n\ndef entered(v):\n    with v as found:\n"
          "        return found\n", "return 3", "return 4"),
    _swap("own str", "C()", "len(f'{v}')", "class C:\n    def __str__(self):\n        return 'ab'\n", "'ab'", "'abc'"),
    _swap("own format", "C()", "len(f'{v:3}')", "class C:\n    def __format__(self, spec):\n        return 'ab'\n",
          "'ab'", "'abc'"),
    _swap("own instance check", "C", "isinstance(3, v)", "class M(type):\n    def __instancecheck__(cls, one):\n"
          "        return True\n\nclass C(metaclass=M):\n    pass\n", "True", "False"),
    _swap("init_subclass", "C", "v.n", "class B:\n    def __init_subclass__(cls):\n        cls.n = 3\n\n"
          "class C(B):\n    pass\n", "= 3", "= 4"),
    _swap("class decorator", "C()", "v.n", "def plus(cls):\n    cls.n = 3\n    return cls\n\n@plus\nclass C:\n"
          "    pass\n", "= 3", "= 4"),
    _swap("abstract base's method", "C()", "v.m()", "import abc\n\nclass B(abc.ABC):\n    @abc.abstractmethod\n"
          "    def n(self): ...\n\n    def m(self):\n        return self.n() + 1\n\nclass C(B):\n    def n(self):\n"
          "        return 3\n", "+ 1", "+ 2"),
    _swap("name-mangled method", "C()", "v.m()", "class C:\n    def __n(self):\n        return 3\n\n"
          "    def m(self):\n        return self.__n()\n", "return 3", "return 4"),
    _swap("method by getattr", "C()", "v.m('n')", "class C:\n    def n(self):\n        return 3\n\n"
          "    def m(self, name):\n        return getattr(self, name)()\n", "return 3", "return 4",
          change="type(v).n = lambda self: 4"),
    _swap("method that a loop finds", "C()", "sum(getattr(v, k)() for k in dir(v) if k.startswith('run_'))",
          "class C:\n    def run_a(self):\n        return 3\n", "return 3", "return 4",
          change="type(v).run_a = lambda self: 4"),
    _swap("method of a nested class", "C()", "v.Inner().m()", "class C:\n    class Inner:\n        def m(self):\n"
          "            return 3\n", "return 3", "return 4"),
    _swap("dynamic class", "C()", "v.m()", "C = type('C', (), {'m': lambda self: 3})\n", "3", "4"),
    _swap("partial method", "C()", "v.m()", "class C:\n    def n(self, k):\n        return k + 1\n\n"
          "    m = functools.partialmethod(n, 3)\n", "(n, 3)", "(n, 4)"),
    _swap("slots object", "C(3)", "v.n", "class C:\n    __slots__ = ('n',)\n\n    def __init__(self, n):\n"
          "        self.n = n + 1\n", "+ 1", "+ 2", change="v.n = 5"),
    Edit("order of attributes", "made('a', 'b')", "made('b', 'a')", "list(vars(v)).index('a')", "class C:\n"
         "    pass\n\ndef made(*names):\n    found = C()\n    for name in names:\n"
         "        setattr(found, name, ord(name))\n    return found\n", change="v.a = vars(v).pop('a')"),
    _swap("order of methods", "C", "[n for n in v.__dict__ if n in 'ab'].index('a')", "class C:\n    def a(self):\n"
          "        pass\n\n    def b(self):\n        pass\n",
          "    def a(self):\n        pass\n\n    def b(self):\n        pass\n",
          "    def b(self):\n        pass\n\n    def a(self):\n        pass\n"),
    _swap("alias of a slot", "C()", "v.area", "class C:\n    __slots__ = ('w', 'h')\n\n    def __init__(self):\n"
          "        self.w, self.h = 3, 4\n\nC.area = C.w\n", "= C.w", "= C.h", change="type(v).area = type(v).h"),
    Edit("slot", "C(3)", "C(4)", "v.n", "class C:\n    __slots__ = ('n',)\n\n    def __init__(self, n):\n"
         "        self.n = n\n", change="v.n = 4"),
    Edit("slot beside a dict", "C(3)", "C(4)", "v.n", "class B:\n    __slots__ = ('n',)\n\nclass C(B):\n"
         "    def __init__(self, n):\n        self.n = n\n        self.m = 1\n", change="v.n = 4"),
    Edit("unset slot", "C(True)", "C(False)", "hasattr(v, 'n')", "class C:\n    __slots__ = ('n',)\n\n"
         "    def __init__(self, there):\n        if there:\n            self.n = 3\n", change="del v.n"),
    Edit("subclass for its base", "B()", "C()", "v.m()", "class B:\n    def m(self):\n        return 3\n\n"
         "class C(B):\n    def m(self):\n        return 4\n", change="v.__class__ = C"),
    Edit("pair that getstate gives", "C({'n': 3}, {'n': 5})", "C({'n': 4}, {'n': 5})", "v.a['n']", "class C:\n"
         "    def __init__(self, a, b):\n        self.a, self.b = a, b\n\n    def __getstate__(self):\n"
         "        return self.a, self.b\n\n    def __setstate__(self, state):\n        self.a, self.b = state\n",
         change="v.a = {'n': 4}"),
    Edit("attribute that getstate leaves out of a copy", "C(3)", "C(4)", "v.n", "class C:\n"
         "    def __init__(self, n):\n        self.n = n\n\n    def __getstate__(self):\n"
         "        return {'n': self.n}\n", change="v.n = 4"),
    Edit("object with its own reduce", "C(3)", "C(4)", "v.n", "class C:\n    def __init__(self, n):\n"
         "        self.n = n\n\n    def __reduce__(self):\n        return C, (self.n,)\n", change="v.n = 4"),
    Edit("object with copyreg", "C(3)", "C(4)", "v.n", "import copyreg\n\nclass C:\n    def __init__(self, n):\n"
         "        self.n = n\n\ncopyreg.pickle(C, lambda one: (C, (one.n,)))\n", change="v.n = 4"),
    # Subclasses of plain types.
    Edit("attribute of an int subclass", "made(3)", "made(4)", "v.tag", "class N(int):\n    pass\n\n"
         "def made(tag):\n    found = N(1)\n    found.tag = tag\n    return found\n", change="v.tag = 4"),
    _swap("property of an int subclass", "N(2)", "v.twice", "class N(int):\n    @property\n    def twice(self):\n"
          "        return self * 2\n", "* 2", "* 3", change="type(v).twice = property(lambda self: self * 3)"),
    _swap("operator of a float subclass", "N(2)", "v + 1", "class N(float):\n    def __add__(self, x):\n"
          "        return float(self) * 2 + x\n", "* 2", "* 3"),
    _swap("method of a str subclass", "N('ab')", "v.size()", "class N(str):\n    def size(self):\n"
          "        return len(self) + 1\n", "+ 1", "+ 2"),
    _swap("method of a bytes subclass", "N(b'ab')", "v.size()", "class N(bytes):\n    def size(self):\n"
          "        return len(self) + 1\n", "+ 1", "+ 2"),
    _swap("method of a tuple subclass", "N((1, 2))", "v.size()", "class N(tuple):\n    def size(self):\n"
          "        return len(self) + 1\n", "+ 1", "+ 2"),
    Edit("attribute of a list subclass", "made(3)", "made(4)", "v.tag", "class N(list):\n    pass\n\n"
         "def made(tag):\n    found = N([1])\n    found.tag = tag\n    return found\n", change="v.tag = 4"),
    _swap("getitem of a list subclass", "N([1, 2])", "v[0]", "class N(list):\n    def __getitem__(self, at):\n"
          "        return super().__getitem__(at) + 1\n", "+ 1", "+ 2"),
    Edit("element of a list subclass", "N([3])", "N([4])", "v[0]", "class N(list):\n    pass\n", change="v[0] = 4"),
    _swap("missing of a dict subclass", "N(a=1)", "v['b']", "class N(dict):\n    def __missing__(self, key):\n"
          "        return 3\n", "return 3", "return 4", change="type(v).__missing__ = lambda self, key: 4"),
    Edit("item of a dict subclass", "N(a=3)", "N(a=4)", "v['a']", "class N(dict):\n    pass\n", change="v['a'] = 4"),
    Edit("dict subclass for dict", "dict(a=3)", "N(a=3)", "v['a']", "class N(dict):\n"
         "    def __getitem__(self, key):\n        return 7\n"),
    Edit("attribute dict", "N(a=3)", "N(a=4)", "v.a", "class N(dict):\n    def __getattr__(self, name):\n"
         "        try:\n            return self[name]\n        except KeyError:\n"
         "            raise AttributeError(name) from None\n", change="v['a'] = 4"),
    Edit("item of a dict that defines its state", "N(a=3)", "N(a=4)", "v['a']", "class N(dict):\n"
         "    def __getstate__(self):\n        return {}\n", change="v['a'] = 4"),
    Edit("element of a list that defines its state", "N([3])", "N([4])", "v[0]", "class N(list):\n"
         "    def __getstate__(self):\n        return {}\n", change="v[0] = 4"),
    Edit("pairs that reduce gives", "C({'a': 3})", "C({'a': 4})", "v.n['a']", "class C:\n    def __init__(self, n):\n"
         "        self.n = n\n\n    def __reduce__(self):\n        return C, (), None, None, iter(self.n.items())\n",
         change="v.n = {'a': 4}"),
    Edit("items that reduce gives", "C([3])", "C([4])", "v.n[0]", "class C:\n    def __init__(self, n):\n"
         "        self.n = n\n\n    def __reduce__(self):\n        return C, (), None, iter(self.n)\n",
         change="v.n = [4]"),
    _swap("contains of a set subclass", "N({1})", "2 in v", "class N(set):\n    def __contains__(self, x):\n"
          "        return x == 2\n", "== 2", "== 3"),
    _swap("method of a Path subclass", "N('a')", "v.size()", "class N(type(pathlib.PurePath())):\n"
          "    def size(self):\n        return 3\n", "return 3", "return 4"),
    _swap("method of a date subclass", "N(2024, 1, 2)", "v.size()", "class N(datetime.date):\n    def size(self):\n"
          "        return self.day + 1\n", "+ 1", "+ 2"),
    # Enums.
    Edit("enum member", "Color.RED", "Color.BLUE", "v.value", _ENUM),
    _swap("enum value", "Color.RED", "v.value", _ENUM, "RED = 3", "RED = 5"),
    _swap("enum method", "Color.RED", "v.shade()", _ENUM, "+ 1", "+ 2",
          change="type(v).shade = lambda self: self.value + 2"),
    _swap("order of enum members", "Color", "[one.name for one in v].index('RED')", _ENUM,
          "RED = 3\n        BLUE = 4", "BLUE = 4\n        RED = 3"),
    _swap("enum property", "Color.RED", "v.size", "class Color(enum.Enum):\n    RED = 1\n\n    @property\n"
          "    def size(self):\n        return 3\n", "return 3", "return 4"),
    _swap("enum that holds a partial", "Color.RED", "v.value(1)", "class Color(enum.Enum):\n"
          "    RED = functools.partial(pow, 3)\n    BLUE = functools.partial(pow, 5)\n", "(pow, 3)", "(pow, 4)"),
    _swap("enum that holds functions in a list", "Color.RED", "v.value[0](1)", "class Color(enum.Enum):\n"
          "    RED = [lambda x: x + 1]\n", "+ 1", "+ 2"),
    _swap("int enum", "Color.RED", "v", "class Color(enum.IntEnum):\n    RED = 3\n", "3", "4"),
    _swap("str enum", "Color.RED", "len(v)", "class Color(str, enum.Enum):\n    RED = 'ab'\n", "'ab'", "'abc'"),
    _swap("str enum with the text of a str", "Color.RED", "len(str(v))", "class Color(str, enum.Enum):\n"
          "    RED = 'ab'\n    __str__ = str.__str__\n", "    __str__ = str.__str__\n", ""),
    _swap("int enum with the text of an enum", "Color.RED", "len(str(v))", "class Color(enum.IntEnum):\n"
          "    RED = 1\n    __str__ = enum.Enum.__str__\n", "    __str__ = enum.Enum.__str__\n", ""),
    _swap("boundary of a flag", "Mode", "v(5).value", "class Mode(enum.Flag, boundary=enum.CONFORM):\n    A = 1\n"
          "    B = 2\n", "CONFORM", "KEEP"),
    Edit("flag", "Mode.A", "Mode.A | Mode.B", "v.value", "class Mode(enum.Flag):\n    A = 1\n    B = 2\n"),
    _swap("enum attribute set in init", "Color.RED", "v.size", "class Color(enum.Enum):\n    RED = (1, 2)\n\n"
          "    def __init__(self, a, b):\n        self.size = a + b\n", "a + b", "a - b"),
    _swap("enum missing", "Color", "v(9).value", "class Color(enum.Enum):\n    RED = 1\n    BLUE = 2\n\n"
          "    @classmethod\n    def _missing_(cls, value):\n        return cls.RED\n", "cls.RED\n", "cls.BLUE\n"),
    # Named tuples and dataclasses.
    Edit("named tuple value", "Point(1, 2)", "Point(1, 3)", "v.b", _POINT),
    _swap("named tuple method", "Point(1, 2)", "v.total()", _POINT, "* 10", "* 20",
          change="type(v).total = lambda self: self.a * 20 + self.b"),
    _swap("named tuple field order", "Point(1, 2)", "v.a", _POINT, "a: int = 3\n        b: int = 4",
          "b: int = 4\n        a: int = 3"),
    _swap("named tuple default", "Point", "v().a", _POINT, "a: int = 3", "a: int = 5"),
    Edit("collections.namedtuple fields", "P(1, 2)", None, "v.a", "P = collections.namedtuple('P', 'a b')\n",
         "P = collections.namedtuple('P', 'b a')\n"),
    Edit("named tuple for tuple", "(1, 2)", "Point(1, 2)", "type(v) is tuple", _POINT),
    Edit("dataclass value", "Data(1, 2)", "Data(1, 3)", "v.b", _DATA, change="v.b = 3"),
    _swap("dataclass method", "Data(1, 2)", "v.total()", _DATA, "* 10", "* 20",
          change="type(v).total = lambda self: self.a * 20 + self.b"),
    _swap("dataclass field order", "Data(1, 2)", "v.a", _DATA, "a: int = 3\n        b: int = 4",
          "b: int = 4\n        a: int = 3"),
    _swap("dataclass field order of equal values", "Data(a=1, b=2)", "dataclasses.astuple(v)[0]", _DATA,
          "a: int = 3\n        b: int = 4", "b: int = 4\n        a: int = 3"),
    _swap("dataclass default", "Data", "v().a", _DATA, "a: int = 3", "a: int = 5"),
    _swap("dataclass default factory", "Data", "v().c[0]", _DATA, "[5]", "[6]"),
    Edit("dataclass field that is not compared", "Data(3)", "Data(4)", "v.a", "@dataclasses.dataclass\nclass Data:\n"
         "    a: int = dataclasses.field(compare=False, repr=False, hash=False)\n", change="v.a = 4"),
    Edit("frozen dataclass", "Data(3)", "Data(4)", "v.a", "@dataclasses.dataclass(frozen=True)\nclass Data:\n"
         "    a: int\n"),
    Edit("dataclass with slots", "Data(3)", "Data(4)", "v.a", "@dataclasses.dataclass(slots=True)\nclass Data:\n"
         "    a: int\n", change="v.a = 4"),
    _swap("dataclass post_init", "Data(3)", "v.b", "@dataclasses.dataclass\nclass Data:\n    a: int\n\n"
          "    def __post_init__(self):\n        self.b = self.a + 1\n", "+ 1", "+ 2"),
    _swap("dataclass field metadata", "Data(3)", "dataclasses.fields(v)[0].metadata['n']", "@dataclasses.dataclass\n"
          "class Data:\n    a: int = dataclasses.field(metadata={'n': 3})\n", "'n': 3", "'n': 4"),
    _swap("dataclass option", "Data(3)", "v == Data(3)", "@dataclasses.dataclass(eq=True)\nclass Data:\n    a: int\n",
          "eq=True", "eq=False"),
    Edit("attribute beside dataclass fields", "made(3)", "made(4)", "v.extra", "@dataclasses.dataclass\n"
         "class Data:\n    a: int = 1\n\ndef made(n):\n    found = Data()\n    found.extra = n\n    return found\n",
         change="v.extra = 4"),
    _swap("typed dict class", "T", "len(v.__annotations__)", "class T(typing.TypedDict):\n    a: int\n",
          "a: int\n", "a: int\n    b: int\n"),
    _swap("hash of a class", "C", "len({v(), v()})", "class B:\n    def __eq__(self, other):\n        return True\n\n"
          "    def __hash__(self):\n        return 1\n\nclass C(B):\n    __hash__ = object.__hash__\n    n = 3\n",
          "    __hash__ = object.__hash__\n", ""),
    _swap("order of a pattern's arguments", "C()", "first(v)", "class C:\n    __match_args__ = ('a', 'b')\n"
          "    a, b = 3, 4\n\ndef first(v):\n    match v:\n        case C(x, y):\n            return x\n",
          "('a', 'b')", "('b', 'a')",
          change="type(v).__match_args__ = ('b', 'a')"),
    _swap("argument of a generic base", "C()", "v.m() is int", "X = typing.TypeVar('X')\n\n"
          "class B(typing.Generic[X]):\n    def m(self):\n"
          "        return typing.get_args(type(self).__orig_bases__[0])[0]\n\nclass C(B[int]):\n    n = 3\n",
          "[int]", "[str]"),
    _swap("generic class", "C[int]()", "v.m()", "X = typing.TypeVar('X')\n\nclass C(typing.Generic[X]):\n"
          "    def m(self):\n        return 3\n", "return 3", "return 4"),
]  # fmt: skip
