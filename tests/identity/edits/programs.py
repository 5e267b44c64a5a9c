"""Edits of whole programs: what they read from modules, files, settings and surroundings, and how they get at it."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class ProgramEdit:
    """Two versions of a program that defines `step`, a function of a sample.

    Args:
        name: in the field's terms.
        text: of the program. before, after: what stands in it, and what takes its place.
        files, files_new: its other files, by path, before the edit, and those that are others after it.
        change: code that makes the edit in a living program.
        refusable: a system may refuse to answer. systems: those that the edit is for.
        environment, environment_new: variables of the process. cwd, cwd_new: where it runs, in the program's folder.
        stamped: all files that are no code have one and the same time.
        site: a folder of the program that stands for installed packages.
        whole: all of its modules counts, so that nothing unrelated can stand in them.
        main: how it is loaded: "" as a module, "script" as `__main__`, "notebook" as a cell in `__main__`.
    """

    name: str
    text: str
    before: str = ""
    after: str = ""
    files: Mapping[str, str] = field(default_factory=dict)
    files_new: Mapping[str, str] = field(default_factory=dict)
    change: str = ""
    refusable: bool = False
    systems: tuple[str, ...] = ("step", "module", "compiled", "function")
    environment: Mapping[str, str] = field(default_factory=dict)
    environment_new: Mapping[str, str] = field(default_factory=dict)
    cwd: str = ""
    cwd_new: str = ""
    stamped: bool = False
    site: str = ""
    whole: bool = False
    main: str = ""

    def __post_init__(self) -> None:
        if self.before not in self.text:
            raise ValueError(f"{self.name}: {self.before!r} does not stand in the program")


def _read(name: str, expression: str, **options: object) -> ProgramEdit:
    """A program that reads its global N, or `other.N`, in some way. N is 3 and becomes 4."""
    options = {"whole": expression not in ("N", "other.N")} | options
    text = f"import other\n\nN = 3\n\n\ndef step(x):\n    return x + float({expression})\n"
    if "other" in expression:
        options = {
            "files": {"other.py": "N = 3\n"},
            "files_new": {"other.py": "N = 4\n"},
            "change": "other.N = 4",
        } | options
        return ProgramEdit(name, text, **options)  # type: ignore[arg-type]
    return ProgramEdit(name, text.replace("import other\n", ""), "N = 3", "N = 4", change="N = 4", **options)  # type: ignore[arg-type]


def _reads(name: str, old: str, new: str, step: str, **options: object) -> ProgramEdit:
    """A program that begins with a statement, which the edit changes."""
    return ProgramEdit(name, f"{old}\n\n\n{step}\n", old, new, **options)  # type: ignore[arg-type]


_ADD = "def step(x):\n    return x + float({})\n"
_FILE = """
def step(x, path):
    with open(path) as file:
        return x + float(file.read())


arguments = {{"path": {}}}
"""
_LIBRARY = "def scaled(x):\n    return x * 3\n"
_DIST = "Metadata-Version: 2.1\nName: madeup\nVersion: {}\n"
_RECORD = "madeup/__init__.py,sha256={},40\nmadeup-1.0.dist-info/METADATA,,\nmadeup-1.0.dist-info/RECORD,,\n"

_PATCHED = (
    "LIMIT = 3\n\n\ndef scale(x, by=1):\n    return x * by\n\n\ndef shift(x, by=2):\n    return x + by\n\n\n"
    "class Scaler:\n    def run(self, x):\n        return scale(x)\n\n\nclass Shifter:\n    def run(self, x):\n"
    "        return shift(x)\n\n\ndef scaled(x):\n    return Scaler().run(x) * LIMIT\n"
)


def _patch(name: str, before: str, after: str, **options: object) -> ProgramEdit:
    """A program that patches an installed module, which its step calls."""
    text = (
        "import madeup\nfrom unittest import mock\n\n\n"
        "class Scale:\n    def __init__(self, by):\n        self.by = by\n\n"
        f"    def __call__(self, x):\n        return x * self.by\n\n\n{before or 'pass'}\n\n\n"
        "def step(x):\n    return madeup.scaled(x)\n"
    )
    files = {"site/madeup/__init__.py": _PATCHED, "site/madeup-1.0.dist-info/METADATA": _DIST.format("1.0"),
             "site/madeup-1.0.dist-info/RECORD": _RECORD.format("a")}  # fmt: skip
    options = {"change": after, "site": "site", "files": files} | options
    return ProgramEdit(f"library patched with {name}", text, before or "pass", after, **options)  # type: ignore[arg-type]


EDITS = [
    # How a program gets at a value of a module.
    _read("global", "N"),
    _read("module's attribute", "other.N"),
    _read("getattr of a module", "getattr(other, 'N')"),
    _read("getattr with a computed name", "getattr(other, 'nN'[1])", refusable=True),
    _read("vars of a module", "vars(other)['N']"),
    _read("dict of a module", "other.__dict__['N']"),
    _read("attrgetter on a module", "operator.attrgetter('N')(other)"),
    _read("module in a list", "[other][0].N"),
    _read("module in a dict", "{'o': other}['o'].N"),
    _read("module passed to a lambda", "(lambda m: m.N)(other)"),
    _read("module through sys.modules", "(other and sys.modules['other']).N", refusable=True),
    _read("own module through sys.modules", "sys.modules[__name__].N", refusable=True),
    _read("globals by a name", "globals()['N']"),
    _read("globals by a computed name", "globals()['nN'[1]]"),
    _read("globals passed on", "dict(globals())['N']"),
    _read("vars without arguments", "(lambda: sys.modules[__name__])().N", refusable=True),
    _read("eval", "eval('N')", refusable=True),
    _read("eval of a computed text", "eval('nN'[1])", refusable=True),
    _read("exec", "(lambda space: (exec('M = N', globals(), space), space['M'])[1])({})", refusable=True),
    _read("compiled code", "eval(compile('N', '', 'eval'))", refusable=True),
    _read("frame", "sys._getframe().f_globals['N']", refusable=True),
    _read("frame through inspect", "inspect.currentframe().f_globals['N']", refusable=True),
    _read("function's globals", "step.__globals__['N']", refusable=True),
    _read("computed import", "(other and __import__('oth' + 'er')).N", refusable=True),
    _read("importlib", "(other and __import__('importlib').import_module('other')).N", refusable=True),
    _read("import by name", "(other and __import__('other')).N", refusable=True),
    _read("builtins getattr", "__builtins__['getattr'](other, 'N')", refusable=True),
    _read("attributes in a loop", "sum(getattr(other, k) for k in dir(other) if k == 'N')"),
    _read("members through inspect", "dict(inspect.getmembers(other))['N']", refusable=True),
    _read("code object that is run", "types.FunctionType((lambda: N).__code__, globals())()"),
    _read("partial of getattr", "functools.partial(getattr, other)('N')"),
    _read("map of getattr", "list(map(getattr, [other], ['N']))[0]"),
    ProgramEdit("star import", "from other import *\n\n\n" + _ADD.format("N"), files={"other.py": "N = 3\n"},
                files_new={"other.py": "N = 4\n"}, change="N = 4"),
    ProgramEdit("order of star imports", "from one import *\nfrom two import *\n\n\n" + _ADD.format("N"),
                "from one import *\nfrom two import *", "from two import *\nfrom one import *",
                files={"one.py": "N = 3\n", "two.py": "N = 4\n"}),
    ProgramEdit("what a package exports", "import package\n\n\n" + _ADD.format("package.f()"),
                files={"package/__init__.py": "from .one import f\n", "package/one.py": "def f():\n    return 3\n",
                       "package/two.py": "def f():\n    return 4\n"},
                files_new={"package/__init__.py": "from .two import f\n"}),
    ProgramEdit("function in a package", "from package.one import f\n\n\n" + _ADD.format("f()"),
                files={"package/__init__.py": "",
                "package/one.py": "from .two import g\n\n\ndef f():\n    return g()\n",
                       "package/two.py": "def g():\n    return 3\n"},
                files_new={"package/two.py": "def g():\n    return 4\n"}),
    ProgramEdit("namespace package", "import package.one\n\n\n" + _ADD.format("package.one.N"),
                files={"package/one.py": "N = 3\n"}, files_new={"package/one.py": "N = 4\n"}),
    ProgramEdit("getattr of a module itself", "import other\n\n\n" + _ADD.format("other.N"),
                files={"other.py": "def __getattr__(name):\n    if name == 'N':\n        return 3\n"
                       "    raise AttributeError(name)\n"},
                files_new={"other.py": "def __getattr__(name):\n    if name == 'N':\n        return 4\n"
                           "    raise AttributeError(name)\n"}, whole=True),
    ProgramEdit("fallback of an import", "try:\n    from other import N\nexcept ImportError:\n    N = 4\n\n\n"
                + _ADD.format("N"), files={"other.py": "N = 3\n"}, files_new={"other.py": "M = 3\n"}),
    ProgramEdit("class from another module", "from other import C\n\n\n" + _ADD.format("C().m()"),
                files={"other.py": "class C:\n    def m(self):\n        return 3\n"},
                files_new={"other.py": "class C:\n    def m(self):\n        return 4\n"},
                change="C.m = lambda self: 4"),
    ProgramEdit("object from another module", "from other import c\n\n\n" + _ADD.format("c.m()"),
                files={"other.py": "class C:\n    n = 3\n\n    def m(self):\n        return self.n\n\n\nc = C()\n"},
                files_new={"other.py": "class C:\n    n = 4\n\n    def m(self):\n        return self.n\n\n\nc = C()\n"},
                change="c.n = 4"),
    ProgramEdit("alias of a function", "import other\n\nalias = other.f\n\n\n" + _ADD.format("alias()"),
                files={"other.py": "def f():\n    return 3\n"}, files_new={"other.py": "def f():\n    return 4\n"}),
    ProgramEdit("plugins that register themselves", "import registry\nimport plugins\n\n\n"
                + _ADD.format("registry.TABLE['f']()"),
                files={"registry.py": "TABLE = {}\n\n\ndef add(f):\n    TABLE[f.__name__] = f\n    return f\n",
                       "plugins.py": "import registry\n\n\n@registry.add\ndef f():\n    return 3\n"},
                files_new={"plugins.py": "import registry\n\n\n@registry.add\ndef f():\n    return 4\n"}),
    ProgramEdit("patched module of the program", "import other\nimport patches\n\n\n" + _ADD.format("other.f()"),
                files={"other.py": "def f():\n    return 1\n", "patches.py": "import other\n\nother.f = lambda: 3\n"},
                files_new={"patches.py": "import other\n\nother.f = lambda: 4\n"}, change="other.f = lambda: 4"),
    ProgramEdit("patched class of the program",
                "import other\nimport patches\n\nc = other.C()\n\n\n" + _ADD.format("c.m()"),
                files={"other.py": "class C:\n    def m(self):\n        return 1\n",
                       "patches.py": "import other\n\nother.C.m = lambda self: 3\n"},
                files_new={"patches.py": "import other\n\nother.C.m = lambda self: 4\n"},
                change="other.C.m = lambda self: 4"),
    ProgramEdit("order of globals", "def one(x):\n    return x + 1\n\n\ndef two(x):\n    return x * 2\n\n\n"
                "def step(x):\n    for name, function in list(globals().items()):\n        if name in ('one', 'two'):\n"
                "            x = function(x)\n    return x\n",
                "def one(x):\n    return x + 1\n\n\ndef two(x):\n    return x * 2\n",
                "def two(x):\n    return x * 2\n\n\ndef one(x):\n    return x + 1\n", whole=True),
    ProgramEdit("order of a step's arguments",
                "def one(x):\n    return x + 1\n\n\ndef two(x):\n    return x * 2\n\n\n"
                "def step(x, **functions):\n    for function in functions.values():\n        x = function(x)\n"
                "    return x\n\n\narguments = {'one': one, 'two': two}\n",
                "{'one': one, 'two': two}", "{'two': two, 'one': one}", systems=("step", "function")),
    # What is run when a module is imported.
    _reads("table made by a loop", "TABLE = [n * 3 for n in range(3)]", "TABLE = [n * 4 for n in range(3)]",
           _ADD.format("TABLE[2]"), change="TABLE = [0, 4, 8]"),
    _reads("table filled afterwards", "TABLE = {}\nfor n in range(3):\n    TABLE[n] = n + 3",
           "TABLE = {}\nfor n in range(3):\n    TABLE[n] = n + 4", _ADD.format("TABLE[2]"), change="TABLE[2] = 6"),
    ProgramEdit("table read from a file at import", "import json\n\nTABLE = json.loads(pathlib.Path(__file__)"
                ".with_name('table.json').read_text())\n\n\n" + _ADD.format("TABLE['n']"),
                files={"table.json": '{"n": 3}'}, files_new={"table.json": '{"n": 4}'}, change="TABLE['n'] = 4"),
    _reads("methods set in a loop",
           "class C:\n    pass\n\n\nfor k, n in (('a', 3),):\n    setattr(C, k, lambda self, n=n: n)",
           "class C:\n    pass\n\n\nfor k, n in (('a', 4),):\n    setattr(C, k, lambda self, n=n: n)",
           _ADD.format("C().a()")),
    _reads("subclasses", "class B:\n    pass\n\n\nclass C(B):\n    n = 3",
           "class B:\n    pass\n\n\nclass C(B):\n    n = 4",
           _ADD.format("B.__subclasses__()[0].n"), refusable=True),
    _reads("registry of subclasses",
           "class B:\n    known = []\n\n    def __init_subclass__(cls):\n        B.known.append(cls)\n\n\n"
           "class C(B):\n    n = 3",
           "class B:\n    known = []\n\n    def __init_subclass__(cls):\n        B.known.append(cls)\n\n\n"
           "class C(B):\n    n = 4", _ADD.format("B.known[0].n"), change="C.n = 4"),
    _reads("objects through gc", "import gc\n\n\nclass Wanted:\n    n = 3", "import gc\n\n\nclass Wanted:\n    n = 4",
           _ADD.format("[c for c in gc.get_objects() if type(c) is type and c.__name__ == 'Wanted'][0].n"),
           refusable=True),
    # What a program sets and reads.
    _reads("global that the step assigns", "SCALE = 3.0", "SCALE = 4.0",
           "def step(x):\n    global SCALE\n    found = x + SCALE\n    SCALE = float(SCALE)\n    return found\n",
           change="SCALE = 4.0"),
    _reads("global that a helper assigns", "SCALE = 3.0",  "SCALE = 4.0",
           "def scale():\n    global SCALE\n    SCALE = SCALE * 1.0\n    return SCALE\n\n\ndef step(x):\n"
           "    return x + scale()\n", change="SCALE = 4.0"),
    _reads("class attribute that a method sets too", "class C:\n    n = 1\n\n    def reset(self):\n        C.n = 1\n\n"
           "    def __call__(self, x):\n        return x + C.n\n\n\nC.n = 3",
           "class C:\n    n = 1\n\n    def reset(self):\n"
           "        C.n = 1\n\n    def __call__(self, x):\n        return x + C.n\n\n\nC.n = 4", "step = C()\n",
           change="C.n = 4"),
    _reads("attribute that the call sets too", "class C:\n    def __init__(self):\n        self.n = 3\n\n"
           "    def __call__(self, x):\n        self.n = self.n * 1\n        return x + self.n",
           "class C:\n    def __init__(self):\n        self.n = 4\n\n    def __call__(self, x):\n"
           "        self.n = self.n * 1\n"
           "        return x + self.n", "step = C()\n", change="step.n = 4"),
    _reads("attribute of the function that it sets too",
           "def step(x):\n    step.n = step.n * 1\n    return x + step.n\n\n\n"
           "step.n = 3", "def step(x):\n    step.n = step.n * 1\n    return x + step.n\n\n\nstep.n = 4", "",
           change="step.n = 4"),
    _reads("filled default argument", "def step(x, seen={'n': 3}):\n    seen['m'] = 1\n    return x + seen['n']",
           "def step(x, seen={'n': 4}):\n    seen['m'] = 1\n    return x + seen['n']", "",
           change="step.__defaults__[0]['n'] = 4",
           systems=("step", "module")),
    _reads("nonlocal counter's start",
           "def outer(n):\n    def step(x):\n        nonlocal n\n        n = n * 1\n        return x + n\n\n"
           "    return step\n\n\nstep = outer(3)",
           "def outer(n):\n    def step(x):\n        nonlocal n\n        n = n * 1\n"
           "        return x + n\n\n    return step\n\n\nstep = outer(4)", "",
           change="step.__closure__[0].cell_contents = 4"),
    _reads("annotations of the step", "def step(x: 'a'):\n    return x + len(step.__annotations__['x'])",
           "def step(x: 'ab'):\n    return x + len(step.__annotations__['x'])", "",
           change="step.__annotations__['x'] = 'ab'"),
    _reads("docstring of the step", "def step(x):\n    'a'\n    return x + len(step.__doc__)",
           "def step(x):\n    'ab'\n    return x + len(step.__doc__)", "", change="step.__doc__ = 'ab'", whole=True),
    _reads("docstring of the module", "__doc__ = 'a'", "__doc__ = 'ab'", _ADD.format("len(__doc__)"),
           change="__doc__ = 'ab'", whole=True),
    _reads("annotations of the module", "n: 'a' = 1", "n: 'ab' = 1", _ADD.format("len(__annotations__['n'])")),
    _reads("name of the step", "def step(x):\n    return x + len(step.__name__)\n\n\nstep.__name__ = 'a'",
           "def step(x):\n    return x + len(step.__name__)\n\n\nstep.__name__ = 'ab'", "",
           change="step.__name__ = 'ab'"),
    _reads("functions that are composed", "def compose(*functions):\n    def step(x):\n        for one in functions:\n"
           "            x = one(x)\n        return x\n\n    return step\n\n\n"
           "step = compose(lambda x: x + 1, lambda x: x * 3)",
           "def compose(*functions):\n    def step(x):\n        for one in functions:\n            x = one(x)\n"
           "        return x\n\n"
           "    return step\n\n\nstep = compose(lambda x: x + 1, lambda x: x * 4)", ""),
    _reads("order of composed functions", "ALL = [lambda x: x + 1, lambda x: x * 3]",
           "ALL = [lambda x: x * 3, lambda x: x + 1]",
           "def step(x):\n    return functools.reduce(lambda y, f: f(y), ALL, x)\n", change="ALL.reverse()"),
    _reads("context variable", "import contextvars\n\nLEVEL = contextvars.ContextVar('level', default=3)",
           "import contextvars\n\nLEVEL = contextvars.ContextVar('level', default=4)", _ADD.format("LEVEL.get()"),
           change="LEVEL.set(4)", refusable=True),
    _reads("thread-local", "LOCAL = threading.local()\nLOCAL.n = 3", "LOCAL = threading.local()\nLOCAL.n = 4",
           _ADD.format("LOCAL.n"), change="LOCAL.n = 4", refusable=True),
    _reads("weak dictionary", "class C:\n    pass\n\n\nc = C()\nTABLE = weakref.WeakKeyDictionary({c: 3})",
           "class C:\n    pass\n\n\nc = C()\nTABLE = weakref.WeakKeyDictionary({c: 4})", _ADD.format("TABLE[c]"),
           change="TABLE[c] = 4", refusable=True),
    _reads("function attribute that is a function", "def g():\n    return g.f()\n\n\ng.f = lambda: 3",
           "def g():\n    return g.f()\n\n\ng.f = lambda: 4", _ADD.format("g()"), change="g.f = lambda: 4"),
    _reads("cached function that was asked before", "@functools.lru_cache\ndef g():\n    return 3\n\n\ng()",
           "@functools.lru_cache\ndef g():\n    return 4\n\n\ng()", _ADD.format("g()")),
    _reads("memo filled with other values", "MEMO = {0: 3}", "MEMO = {0: 4}",
           "def g(k):\n    if k not in MEMO:\n        MEMO[k] = k\n    return MEMO[k]\n\n\n" + _ADD.format("g(0)"),
           change="MEMO[0] = 4"),
    # Settings of the process and of libraries.
    ProgramEdit("environment variable", _ADD.format("os.environ['WARMSTORE_TEST_N']"),
                environment={"WARMSTORE_TEST_N": "3"},
                environment_new={"WARMSTORE_TEST_N": "4"}, change="os.environ['WARMSTORE_TEST_N'] = '4'"),
    ProgramEdit("environment variable by getenv", _ADD.format("os.getenv('WARMSTORE_TEST_N', 5)"),
                environment={"WARMSTORE_TEST_N": "3"}, environment_new={"WARMSTORE_TEST_N": "4"},
                change="os.environ['WARMSTORE_TEST_N'] = '4'"),
    ProgramEdit("environment variable that appears", _ADD.format("os.environ.get('WARMSTORE_TEST_N', 5)"),
                environment_new={"WARMSTORE_TEST_N": "4"}, change="os.environ['WARMSTORE_TEST_N'] = '4'"),
    ProgramEdit("environment variable at import", "N = int(os.environ['WARMSTORE_TEST_N'])\n\n\n" + _ADD.format("N"),
                environment={"WARMSTORE_TEST_N": "3"}, environment_new={"WARMSTORE_TEST_N": "4"}),
    ProgramEdit("whole environment", _ADD.format("dict(os.environ)['WARMSTORE_TEST_N']"),
                environment={"WARMSTORE_TEST_N": "3"}, environment_new={"WARMSTORE_TEST_N": "4"}, refusable=True),
    ProgramEdit("environment variable with a computed default", _ADD.format("os.getenv('WARMSTORE_TEST_N', str(5))"),
                environment={"WARMSTORE_TEST_N": "3"}, environment_new={"WARMSTORE_TEST_N": "4"},
                change="os.environ['WARMSTORE_TEST_N'] = '4'"),
    *(
        ProgramEdit(f"environment variable by {name}", _ADD.format(text), environment={"WARMSTORE_TEST_N": "3"},
                    environment_new={"WARMSTORE_TEST_N": "4"}, refusable=True)
        for name, text in {
            "a joined name": "os.environ['WARMSTORE_' + str('TEST_N')]",
            "a formatted name": "os.environ.get(f'WARMSTORE_TEST_{chr(78)}')",
            "a name made with %": "os.getenv('WARMSTORE_%s' % str('TEST_N'))",
            "a name made by a method": "os.getenv('{}_TEST_N'.format(str('WARMSTORE')), 5)",
        }.items()
    ),
    ProgramEdit("environment variable by an import in the body",
                "def step(x):\n    import os as system\n    return x + float(system.environ['WARMSTORE_TEST_N'])\n",
                environment={"WARMSTORE_TEST_N": "3"}, environment_new={"WARMSTORE_TEST_N": "4"},
                change="os.environ['WARMSTORE_TEST_N'] = '4'"),
    ProgramEdit("environment variable by a name imported in the body",
                "def step(x):\n    from os import getenv as ask\n    return x + float(ask('WARMSTORE_TEST_N'))\n",
                environment={"WARMSTORE_TEST_N": "3"}, environment_new={"WARMSTORE_TEST_N": "4"}, refusable=True,
                change="os.environ['WARMSTORE_TEST_N'] = '4'"),
    ProgramEdit("environment through a helper", "def wanted(name):\n    return os.environ[name]\n\n\n"
                + _ADD.format("wanted('WARMSTORE_TEST_N')"), environment={"WARMSTORE_TEST_N": "3"},
                environment_new={"WARMSTORE_TEST_N": "4"}, refusable=True),
    *(
        ProgramEdit(f"environment variable by {name}", text, environment={"WARMSTORE_TEST_N": "3"},
                    environment_new={"WARMSTORE_TEST_N": "4"}, refusable=is_refusable)
        for name, is_refusable, text in (
            ("a partial", False, "ASK = functools.partial(os.getenv, 'WARMSTORE_TEST_N')\n\n\n" + _ADD.format("ASK()")),
            ("a bound method", False, "ASK = os.environ.get\n\n\n" + _ADD.format("ASK('WARMSTORE_TEST_N')")),
            ("an imported name", False, "from os import environ as E\n\n\n" + _ADD.format("E['WARMSTORE_TEST_N']")),
            ("a default", True, "def step(x, ask=os.getenv):\n    return x + float(ask('WARMSTORE_TEST_N'))\n"),
            ("an item of a dict", True, "A = {'ask': os.getenv}\n\n\n" + _ADD.format("A['ask']('WARMSTORE_TEST_N')")),
            ("a static method", True, "class C:\n    ask = staticmethod(os.getenv)\n\n\n"
             + _ADD.format("C.ask('WARMSTORE_TEST_N')")),
            ("another name of the module", True,
             "def step(x):\n    o = os\n    return x + float(o.environ['WARMSTORE_TEST_N'])\n"),
            ("the module as an argument", True, "def ask(o):\n    return o.getenv('WARMSTORE_TEST_N')\n\n\n"
             + _ADD.format("ask(os)")),
            ("a keyword", True, _ADD.format("os.getenv(default='5', key='WARMSTORE_TEST_N')")),
            ("one of two names", True, "A = 1\n\n\n" + _ADD.format(
             "('WARMSTORE_TEST_N' if A else 'OTHER') in os.environ) + float(os.getenv('WARMSTORE_TEST_N')")),
        )
    ),
    _reads("decimal context", "decimal.getcontext().prec = 3", "decimal.getcontext().prec = 6",
           _ADD.format("decimal.Decimal(1) / 3"), change="decimal.getcontext().prec = 6"),
    _reads("decimal context that is asked for", "decimal.getcontext().prec = 3", "decimal.getcontext().prec = 6",
           _ADD.format("decimal.getcontext().prec"), change="decimal.getcontext().prec = 6", refusable=True),
    _reads("default dtype of torch", "torch.set_default_dtype(torch.float32)", "torch.set_default_dtype(torch.float64)",
           _ADD.format("torch.zeros(1).element_size()"), change="torch.set_default_dtype(torch.float64)"),
    _reads("print options of NumPy", "np.set_printoptions(precision=3)", "np.set_printoptions(precision=5)",
           _ADD.format("len(str(np.array([1 / 3])))"), change="np.set_printoptions(precision=5)", refusable=True),
    _reads("arguments of the process", "sys.argv[:] = ['a', '3']", "sys.argv[:] = ['a', '4']",
           _ADD.format("sys.argv[1]"),
           change="sys.argv[1] = '4'"),
    _reads("patched library function", "math.floor = lambda x: 3", "math.floor = lambda x: 4",
           _ADD.format("math.floor(0)"),
           change="math.floor = lambda x: 4"),
    _reads("patched library function or not", "PATCHED = 1", "math.floor = lambda x: 4", _ADD.format("math.floor(0)"),
           change="math.floor = lambda x: 4"),
    _reads("patched function beneath a library's",
           "import textwrap\n\ntextwrap.TextWrapper.fill = lambda self, x: 'abc'",
           "import textwrap\n\ntextwrap.TextWrapper.fill = lambda self, x: 'abcd'",
           _ADD.format("len(textwrap.fill('a'))"),
           change="textwrap.TextWrapper.fill = lambda self, x: 'abcd'"),
    _reads("patched method of a library's class", "fractions.Fraction.__float__ = lambda self: 3.0",
           "fractions.Fraction.__float__ = lambda self: 4.0", "F = fractions.Fraction(1, 2)\n\n\n" + _ADD.format("F"),
           change="fractions.Fraction.__float__ = lambda self: 4.0"),
    _reads("patched NumPy function", "np.median = lambda x: 3.0", "np.median = lambda x: 4.0",
           _ADD.format("np.median([1])"),
           change="np.median = lambda x: 4.0"),
    _reads("patched torch function", "nn.functional.relu = lambda x: x + 3", "nn.functional.relu = lambda x: x + 4",
           _ADD.format("nn.functional.relu(torch.ones(1))[0]"), change="nn.functional.relu = lambda x: x + 4"),
    _reads("patched builtin", "import builtins\n\nbuiltins.ascii = lambda x: 'abc'",
           "import builtins\n\nbuiltins.ascii = lambda x: 'abcd'",
           _ADD.format("len(ascii(1))"), change="import builtins\nbuiltins.ascii = lambda x: 'abcd'"),
    _reads("own builtin", "import builtins\n\nbuiltins.scale = 3", "import builtins\n\nbuiltins.scale = 4",
           _ADD.format("scale"),
           change="import builtins\nbuiltins.scale = 4"),
    _reads("builtin that a global hides", "shown = ascii", "def ascii(x):\n    return 'abcdef'",
           _ADD.format("len(ascii(1))"),
           change="def ascii(x):\n    return 'abcdef'"),
    # Files and folders.
    ProgramEdit("file beside the program", _ADD.format("pathlib.Path(__file__).with_name('n.txt').read_text()"),
                files={"n.txt": "3"}, files_new={"n.txt": "4"}),
    ProgramEdit("file beside the program, by open",
                "def step(x):\n    with open(os.path.join(os.path.dirname(__file__), 'n.txt')) as file:\n"
                "        return x + float(file.read())\n", files={"n.txt": "3"}, files_new={"n.txt": "4"}),
    ProgramEdit("file beside the program, by a global path",
                "HERE = pathlib.Path(__file__).parent\nDATA = HERE / 'n.txt'\n\n\n"
                + _ADD.format("DATA.read_text()"), files={"n.txt": "3"}, files_new={"n.txt": "4"}),
    ProgramEdit("file named by a str", _FILE.format("os.path.join(os.path.dirname(__file__), 'n.txt')"),
                files={"n.txt": "3"},
                files_new={"n.txt": "45"}, systems=("step",)),
    ProgramEdit("file of equal size named by a str", _FILE.format("os.path.join(os.path.dirname(__file__), 'n.txt')"),
                files={"n.txt": "3"}, files_new={"n.txt": "4"}, systems=("step",)),
    ProgramEdit("file named by a Path", _FILE.format("pathlib.Path(__file__).with_name('n.txt')"), files={"n.txt": "3"},
                files_new={"n.txt": "4"}, systems=("step",)),
    ProgramEdit("file named by bytes", _FILE.format("os.fsencode(pathlib.Path(__file__).with_name('n.txt'))"),
                files={"n.txt": "3"}, files_new={"n.txt": "4"}, systems=("step",)),
    ProgramEdit("file named relatively", _FILE.format("'n.txt'"), files={"n.txt": "3"}, files_new={"n.txt": "4"},
                systems=("step",)),
    ProgramEdit("file named in a list", _FILE.format("[str(pathlib.Path(__file__).with_name('n.txt'))]").replace(
                "open(path)", "open(path[0])"), files={"n.txt": "3"}, files_new={"n.txt": "4"}, systems=("step",)),
    ProgramEdit("file named in a dict", _FILE.format("{{'a': pathlib.Path(__file__).with_name('n.txt')}}".replace("{{",
                "{").replace(
                "}}", "}")).replace("open(path)", "open(path['a'])"), files={"n.txt": "3"}, files_new={"n.txt": "4"},
                systems=("step",)),
    ProgramEdit("file named by a field", "@dataclasses.dataclass\nclass Where:\n    path: str\n\n"
                + _FILE.format("Where(str(pathlib.Path(__file__).with_name('n.txt')))").replace("open(path)",
                "open(path.path)"),
                files={"n.txt": "3"}, files_new={"n.txt": "4"}, systems=("step",)),
    ProgramEdit("file named by a partial",
                "def full(x, path):\n    with open(path) as file:\n        return x + float(file.read())\n\n\n"
                "step = functools.partial(full, path=str(pathlib.Path(__file__).with_name('n.txt')))\n",
                files={"n.txt": "3"},
                files_new={"n.txt": "4"}),
    ProgramEdit("file that appears", "def step(x, path):\n    return x + os.path.exists(path)\n\n\n"
                "arguments = {'path': str(pathlib.Path(__file__).with_name('n.txt'))}\n", files={},
                files_new={"n.txt": "4"},
                systems=("step",)),
    ProgramEdit("file of the source",
                "source = [str(pathlib.Path(__file__).with_name('n.txt'))] * 6\n\n\ndef step(path):\n"
                "    with open(path) as file:\n        return np.float64(file.read())\n", files={"n.txt": "3"},
                files_new={"n.txt": "4"}, systems=("step",)),
    ProgramEdit("file of the source, in a pair",
                "source = [(str(pathlib.Path(__file__).with_name('n.txt')), 1)] * 6\n\n\n"
                "def step(pair):\n    with open(pair[0]) as file:\n        return np.float64(file.read())\n",
                files={"n.txt": "3"},
                files_new={"n.txt": "4"}, systems=("step",)),
    ProgramEdit("another folder, an equal name", _FILE.format("'n.txt'"), files={"a/n.txt": "3", "b/n.txt": "4"},
                cwd="a",
                cwd_new="b", stamped=True, systems=("step",)),
    ProgramEdit("another folder, an equal Path", _FILE.format("pathlib.Path('n.txt')"), files={"a/n.txt": "3",
                "b/n.txt": "4"},
                cwd="a", cwd_new="b", stamped=True, systems=("step",)),
    ProgramEdit("another folder, equal names in the source", "source = ['n.txt'] * 6\n\n\ndef step(path):\n"
                "    with open(path) as file:\n        return np.float64(file.read())\n", files={"a/n.txt": "3",
                "b/n.txt": "4"},
                cwd="a", cwd_new="b", stamped=True, systems=("step",)),
    ProgramEdit("working directory", _ADD.format("len(os.getcwd())"), files={"a/n.txt": "3", "bb/n.txt": "4"}, cwd="a",
                cwd_new="bb", refusable=True),
    # Sources.
    _reads("source", "source = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]", "source = [1.0, 2.0, 3.0, 4.0, 5.0, 7.0]",
           "def step(x):\n    return x + 1\n", systems=("step",), change="source[5] = 7.0"),
    _reads("attribute of a source", "class Source:\n    n = 3\n\n    def __len__(self):\n        return 6\n\n"
           "    def __getitem__(self, at):\n        return float(at + self.n)",
           "class Source:\n    n = 4\n\n    def __len__(self):\n"
           "        return 6\n\n    def __getitem__(self, at):\n        return float(at + self.n)",
           "source = Source()\n\n\ndef step(x):\n    return x + 1\n", systems=("step",), change="Source.n = 4"),
    _reads("code of a source",
           "class Source:\n    def __len__(self):\n        return 6\n\n    def __getitem__(self, at):\n"
           "        return float(at + 3)",
           "class Source:\n    def __len__(self):\n        return 6\n\n    def __getitem__(self, at):\n"
           "        return float(at + 4)", "source = Source()\n\n\ndef step(x):\n    return x + 1\n", systems=("step",
           )),
    # How a program is installed and loaded.
    ProgramEdit("installed package of another version",
                "import madeup\n\n\ndef step(x):\n    return madeup.scaled(x)\n",
                files={"site/madeup/__init__.py": _LIBRARY, "site/madeup-1.0.dist-info/METADATA": _DIST.format("1.0"),
                       "site/madeup-1.0.dist-info/RECORD": _RECORD.format("a")},
                files_new={"site/madeup/__init__.py": _LIBRARY.replace("3", "4"),
                           "site/madeup-1.0.dist-info/METADATA": _DIST.format("1.1")}, site="site"),
    ProgramEdit("installed package of another hash", "import madeup\n\n\ndef step(x):\n    return madeup.scaled(x)\n",
                files={"site/madeup/__init__.py": _LIBRARY, "site/madeup-1.0.dist-info/METADATA": _DIST.format("1.0"),
                       "site/madeup-1.0.dist-info/RECORD": _RECORD.format("a")},
                files_new={"site/madeup/__init__.py": _LIBRARY.replace("3", "4"),
                           "site/madeup-1.0.dist-info/RECORD": _RECORD.format("b")}, site="site"),
    ProgramEdit("package without a distribution", "import madeup\n\n\ndef step(x):\n    return madeup.scaled(x)\n",
                files={"site/madeup/__init__.py": _LIBRARY}, files_new={"site/madeup/__init__.py": _LIBRARY.replace("3",
                "4")},
                site="site"),
    ProgramEdit("package in a folder called site-packages",
                "import madeup\n\n\ndef step(x):\n    return madeup.scaled(x)\n",
                files={"site-packages/madeup/__init__.py": _LIBRARY},
                files_new={"site-packages/madeup/__init__.py": _LIBRARY.replace("3", "4")}, site="site-packages"),
    # What a program puts into installed modules.
    _patch("a partial over its function", "", "madeup.scale = functools.partial(madeup.scale, by=4)"),
    _patch("another partial", "madeup.scale = functools.partial(madeup.scale, by=4)",
           "madeup.scale = functools.partial(madeup.scale, by=5)"),
    _patch("an object", "madeup.scale = Scale(4)", "madeup.scale = Scale(5)"),
    _patch("a bound method", "madeup.scale = Scale(4).__call__", "madeup.scale = Scale(5).__call__"),
    _patch("a mock", "madeup.scale = mock.Mock(side_effect=Scale(4))",
           "madeup.scale = mock.Mock(side_effect=Scale(5))"),
    _patch("a method of C", "", "madeup.scale = np.float64(4).__mul__", systems=("step",)),
    _patch("another of its functions", "", "madeup.scale = madeup.shift"),
    _patch("a method of another class", "", "madeup.Scaler.run = madeup.Shifter.run"),
    _patch("another of its classes", "", "madeup.Scaler = madeup.Shifter"),
    _patch("a subclass", "", "madeup.Scaler = type('Mine', (madeup.Scaler,), {'run': lambda self, x: x * 9})"),
    _patch("a vectorized function", "", "madeup.scale = np.vectorize(lambda x: x * 4)"),
    _patch("a setting", "", "madeup.LIMIT = 4"),
    _patch("a function of what it requires", "import inner", "import inner\n\ninner.scale = lambda x: x * 4",
           files={"site/madeup/__init__.py": "def scaled(x):\n    import inner\n\n    return inner.scale(x)\n",
                  "site/inner/__init__.py": "def scale(x):\n    return x * 3\n",
                  "site/madeup-1.0.dist-info/METADATA": _DIST.format("1.0") + "Requires-Dist: Inner>=1\n",
                  "site/madeup-1.0.dist-info/RECORD": _RECORD.format("a"),
                  "site/inner-1.0.dist-info/METADATA": _DIST.format("1.0").replace("madeup", "inner"),
                  "site/inner-1.0.dist-info/RECORD": _RECORD.replace("madeup", "inner").format("b")}),
    _patch("another setting", "madeup.LIMIT = 4", "madeup.LIMIT = 5"),
    ProgramEdit("script", "N = 3\n\n\n" + _ADD.format("N"), "N = 3", "N = 4", main="script", change="N = 4"),
    ProgramEdit("function of a script", "def g():\n    return 3\n\n\n" + _ADD.format("g()"), "3", "4", main="script"),
    ProgramEdit("class of a script",
                "class C:\n    def m(self):\n        return 3\n\n\nc = C()\n\n\n" + _ADD.format("c.m()"),
                "3", "4", main="script"),
    ProgramEdit("cell of a notebook", "N = 3\n\n\n" + _ADD.format("N"), "N = 3", "N = 4", main="notebook",
                change="N = 4"),
    ProgramEdit("function of a notebook", "def g():\n    return 3\n\n\n" + _ADD.format("g()"), "3", "4",
                main="notebook"),
    ProgramEdit("class of a notebook",
                "class C:\n    def m(self):\n        return 3\n\n\nc = C()\n\n\n" + _ADD.format("c.m()"),
                "3", "4", main="notebook"),
]  # fmt: skip
