"""Neutral changes: programs, and what may happen to them without a sample being computed again."""

import ast
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.identity.programs import Program, with_model

_HEAD = '''"""A program."""
import collections, dataclasses, enum, functools, logging, math, pathlib, sys, threading, types, typing

import numpy as np
'''
PROGRAMS = {
    "functions": '''
SCALE = 3.0


def helper(x, by=2):
    """Scaled."""
    return x * by + SCALE


@functools.lru_cache
def offset(n):
    return n + 1


def outer(k):
    return lambda x: helper(x) + k + offset(2)


class Timed:
    """Stands for a decorator that is a class."""

    def __init__(self, function):
        functools.update_wrapper(self, function)
        self.function = function

    def __call__(self, x):
        return self.function(x)


@Timed
def half(x: int):
    """Half of it."""
    return x / 2


def step(x):
    """The step."""
    return outer(5)(next(map(half, [x])))
''',
    "object": '''
class Step:
    """A step."""

    limit = 3

    def __init__(self, n):
        self.n = n
        self.table = {"a": [1, 2], "b": (3,)}
        self.tags = {"one", "two", "three", "four"}
        self.size = np.arange(3.0)

    def __call__(self, x):
        """Called."""
        return x * self.n + self.helper() + len(self.tags)

    def helper(self):
        return self.table["a"][1] + self.limit + self.size[2]


step = Step(3)
''',
    "classes": '''
class Base:
    def value(self):
        """A value."""
        return 1


class Child(Base):
    def value(self):
        return super().value() + 1


class Way(enum.Enum):
    LINEAR = functools.partial(math.pow, 2)
    OTHER = functools.partial(math.pow, 3)


@dataclasses.dataclass
class Config:
    way: Way = Way.LINEAR
    sizes: list = dataclasses.field(default_factory=lambda: [1, 2])


class Pair(typing.NamedTuple):
    a: int
    b: int

    def total(self):
        return self.a + self.b


CONFIG = Config()
PAIR = Pair(1, 2)
PROXY = types.MappingProxyType({"n": 3})


def step(x):
    """The step."""
    return x + Child().value() + CONFIG.way.value(2) + CONFIG.sizes[1] + PAIR.total() + PROXY["n"]
''',
    "memory": '''
MEMO = {}


class Step:
    """Remembers what it saw, and makes what it needs when it needs it."""

    count = 0

    def __init__(self, n):
        self.n = n
        self.seen = {}
        self.table = None

    @functools.cached_property
    def offset(self):
        return self.n + 1

    def __call__(self, x):
        Step.count += 1
        if self.table is None:
            self.table = [self.n, self.n + 1]
        self.last = float(x.reshape(-1)[0])
        key = (self.last, tuple(x.shape))
        if key not in self.seen:
            self.seen[key] = x + self.table[1] + self.offset
        if key not in MEMO:
            MEMO[key] = float(self.n)
        return self.seen[key] + MEMO[key]


step = Step(3)
''',
    "inert": '''
log = logging.getLogger("program")
lock = threading.Lock()


class Step:
    """Logs, locks and counts."""

    def __init__(self):
        self.lock = threading.RLock()
        self.log = logging.getLogger("program.step")
        self.times = collections.Counter()
        self.done = threading.Event()

    def __getstate__(self):
        return {}

    def __setstate__(self, state):
        self.__init__()

    def __call__(self, x):
        with self.lock, lock:
            self.times["calls"] += 1
            self.log.debug("called")
            log.debug("called")
        return x + 1


step = Step()
''',
    "sets": '''
NAMES = frozenset({"alpha", "beta", "gamma", "delta", "epsilon"})
TABLE = {name: len(name) for name in sorted(NAMES)}
KINDS = {int, float, str}


def step(x):
    """The step."""
    wanted = {"alpha", "zeta", "eta"}
    return x + len(NAMES & wanted) + TABLE["beta"] + (float in KINDS)
''',
    "file": '''
TABLE = pathlib.Path(__file__).with_name("table.txt")


def step(x):
    """The step."""
    with open(pathlib.Path(__file__).with_name("table.txt")) as file:
        return x + float(file.read()) + len(TABLE.name)
''',
    "modules": '''
import other
from package import part
from package.part import scaled


def step(x):
    """The step."""
    return scaled(x) + other.N + part.N
''',
    "torch": '''
import torch
from torch import nn


class Net(nn.Module):
    """A net."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.late = None
        with torch.no_grad():
            self.linear.weight.copy_(torch.arange(9.0).reshape(3, 3))
            self.linear.bias.zero_()

    def forward(self, x):
        """Forward."""
        if self.late is None:
            self.late = 3
        return self.linear(x) + self.late


net = Net().requires_grad_(False).eval()
held = {"net": [net]}


def step(x):
    """The step."""
    return held["net"][0](torch.as_tensor(x, dtype=torch.float32)).numpy().astype(np.float64)
''',
    "hooks": '''
import torch
from torch import nn


class Seen:
    def __init__(self):
        self.outputs = []

    def __call__(self, module, args, output):
        self.outputs.append(output.sum())


seen = Seen()
captured = {}
net = nn.Linear(3, 3)
with torch.no_grad():
    net.weight.fill_(0.5)
    net.bias.fill_(0.25)
net.requires_grad_(False).eval()
net.register_forward_hook(seen)
net.register_forward_hook(lambda module, args, output: captured.update(last=output.mean()))


def step(x):
    """The step."""
    return net(torch.as_tensor(x, dtype=torch.float32)).numpy().astype(np.float64)
''',
}
_FILES = {
    "file": {"table.txt": "3"},
    "modules": {
        "other.py": '"""Others."""\nN = 3\nM = 4\n',
        "package/__init__.py": "",
        "package/part.py": '"""A part."""\nfrom .inner import by\n\nN = 5\n\n\ndef scaled(x):\n    """Scaled."""\n'
        "    return x * by()\n",
        "package/inner.py": "def by():\n    return 2\n",
    },
}
_UNRELATED = '''

UNRELATED = 1


def unrelated(x):
    """Nobody calls it."""
    return x * UNRELATED


class Unrelated:
    """Nobody uses it."""
    n = 1
'''
_CLONE = """
import copy
if "model" in globals():
    model = copy.deepcopy(model)
else:
    step = copy.deepcopy(step)
"""
_PICKLED = """
import pickle
if "model" in globals():
    model = pickle.loads(pickle.dumps(model))
else:
    step = pickle.loads(pickle.dumps(step))
"""
_SEEDS = """
import random
random.seed(7); np.random.seed(7)
if "torch" in sys.modules:
    sys.modules["torch"].manual_seed(7)
"""

Texts = Mapping[str, str]


@dataclass(frozen=True)
class Neutral:
    """Something that happens between two runs of a program, and changes nothing that it computes.

    Args:
        files: what becomes of its texts.
        first, second: actions of the process that fills the cache, and of the one that must find everything.
        moved: the second process finds the program in another folder. linked: reached through a link.
        seed: the second process has another seed of hashes. cwd: another working directory.
        main: both load the program so; see `Task`.
        without: programs that it does not fit: what a copy of them remembers counts. systems: those it fits.
    """

    name: str
    files: Callable[[Texts], Texts] = dict
    first: tuple[str, ...] = ("build", "use")
    second: tuple[str, ...] = ("build", "use", "plain")
    moved: bool = False
    linked: bool = False
    seed: bool = False
    cwd: bool = False
    main: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    without: tuple[str, ...] = ()
    systems: tuple[str, ...] = ("step", "module", "compiled")


def _each(change: Callable[[str], str]) -> Callable[[Texts], Texts]:
    """A change of every module of a program."""

    def changed(files: Texts) -> Texts:
        return {name: change(text) if name.endswith(".py") else text for name, text in files.items()}

    return changed


def _reordered(text: str) -> str:
    """A program with what nobody needs at import between its definitions, and one definition further down."""
    return (
        text.replace("\n\n\ndef ", "\n\n\ndef first_of_all():\n    return 0\n\n\ndef ", 1)
        + "\n\ndef last_of_all():\n    return 0\n"
    )


_MAIN = ("modules", "file")  # a cell has no file, and its modules are not read again
NEUTRAL = [
    Neutral("nothing"),
    Neutral("comment", _each(lambda text: "# A comment.\n\n\n" + re.sub(r"\n(class|def|@)", r"\n# Another.\n\1",
            text))),
    Neutral("comment in a function", _each(lambda text: re.sub(r"\n    return", r"\n    # Returns.\n    return",
            text))),
    Neutral("blank lines", _each(lambda text: text.replace("\n\n\n", "\n\n\n\n\n"))),
    Neutral("formatting", _each(lambda text: ast.unparse(ast.parse(text)) + "\n")),
    Neutral("docstrings", _each(lambda text: re.sub(r'"""(\w)', r'"""In other words: \1', text))),
    Neutral("no docstrings", _each(lambda text: re.sub(r'\n +"""[^"]*"""', "", text))),
    Neutral("unrelated code", _each(lambda text: text + _UNRELATED)),
    Neutral("unrelated import", _each(lambda text: "import colorsys\nfrom decimal import Decimal\n" + text)),
    Neutral("other order of definitions", _each(_reordered)),
    Neutral("annotations", _each(lambda text: text.replace("def step(x):", "def step(x: int) -> float:").replace(
        "def __call__(self, x):", "def __call__(self, x: int) -> float:").replace("def half(x: int)", "def half(x)"))),
    Neutral("unrelated subclass",
            _each(lambda text: text + "\n\nclass More(Step if 'Step' in globals() else object):\n    pass\n")),
    Neutral("unrelated file", lambda files: {**files, "more.py": "N = 1\n", "notes.txt": "none"}),
    Neutral("constant of an unrelated function", _each(lambda text: text + "\n\ndef unrelated():\n    return 1\n")),
    Neutral("touched files", _each(lambda text: text)),
    Neutral("moved checkout", moved=True),
    Neutral("moved checkout, other comment", _each(lambda text: "# Moved.\n" + text), moved=True),
    Neutral("linked checkout", linked=True),
    Neutral("other working directory", cwd=True),
    Neutral("other seed of hashes", seed=True),
    Neutral("other seed of hashes, moved", seed=True, moved=True),
    Neutral("unrelated environment variable", environment={"WARMSTORE_TEST_UNRELATED": "1", "HOME": "/nowhere"}),
    Neutral("seeds of global generators", second=(_SEEDS, "build", "use", "plain")),
    Neutral("second use", second=("build", "use", "use", "plain")),
    Neutral("wrapped again", second=("build", "use", "again", "use", "plain")),
    Neutral("second use in the process that filled", first=("build", "use", "use"), second=("build", "use", "plain")),
    Neutral("wrapped again in the process that filled", first=("build", "use", "again", "use")),
    Neutral("threads", second=("build", "in threads", "plain")),
    Neutral("threads in the process that filled", first=("build", "in threads")),
    Neutral("imported again", second=("reload", "build", "use", "plain")),
    Neutral("imported again in the process that filled", first=("build", "use", "reload", "again", "use")),
    Neutral("copy", second=(_CLONE, "build", "use", "plain")),
    Neutral("copy in the process that filled", first=("build", "use", _CLONE, "again", "use"), without=("memory",)),
    Neutral("pickled", second=(_PICKLED, "build", "use", "plain"), without=("hooks",)),
    Neutral("pickled in the process that filled", first=("build", "use", _PICKLED, "again", "use"),
            without=("hooks", "memory", "object")),  # the copy no longer shares what the program names too
    Neutral("script", main="script"),
    Neutral("script in a moved checkout", main="script", moved=True),
    Neutral("script with a comment", _each(lambda text: "# A comment.\n" + text), main="script"),
    Neutral("notebook", main="notebook", without=_MAIN),
    Neutral("cell run again", second=("rerun", "build", "use", "plain"), main="notebook", without=_MAIN),
    Neutral("cell run again in the process that filled", first=("build", "use", "rerun", "again", "use"),
            main="notebook",
            without=_MAIN),
    Neutral("cell with a comment", _each(lambda text: "# A comment.\n" + text), main="notebook", without=_MAIN),
    Neutral("filled, then wrapped", first=("fill",), systems=("module",)),
    Neutral("filled, then wrapped, in one process", first=("fill", "build", "use"), systems=("module",)),
    Neutral("filled twice", first=("fill", "fill"), systems=("module",)),
    Neutral("garbage", second=("import gc; junk = [object() for _ in range(1000)]; gc.collect()", "build", "use",
            "plain")),
    Neutral("debugging logs", second=("logging.getLogger().setLevel(10)", "build", "use", "plain")),
]  # fmt: skip


@dataclass(frozen=True)
class NeutralCase:
    """A neutral change of a program that a system has filled its cache by."""

    name: str
    neutral: Neutral
    system: str

    @property
    def id(self) -> str:
        """Its name in pytest."""
        return f"{self.system}: {self.name} | {self.neutral.name}"

    def versions(self) -> tuple[Program, Program]:
        """The program, and what becomes of it."""
        files = {"program.py": with_model(_HEAD + PROGRAMS[self.name], self.system), **_FILES.get(self.name, {})}
        return Program(files, main=self.neutral.main), Program(
            self.neutral.files(files), self.neutral.environment, main=self.neutral.main
        )

    def write(self, folder: Path, *, second: bool) -> Path:
        """Put a version into a folder, and return where the program is found."""
        program = self.versions()[second]
        root = folder / ("elsewhere/moved" if second and self.neutral.moved else "program")
        program.write(root)
        if not (second and self.neutral.linked):
            return root
        link = folder / "link"
        link.symlink_to(root)
        return link


def cases() -> Iterator[NeutralCase]:
    """Every program, neutral change and system that fit together."""
    for neutral in NEUTRAL:
        for name in PROGRAMS:
            if name in neutral.without:
                continue
            for system in neutral.systems:
                if not (system == "compiled" and "process that filled" in neutral.name):
                    yield NeutralCase(name, neutral, system)
