"""Where a value stands: an argument, a default, a closure, a global, an attribute, another module of the program, ...

Each place is the text of a `step` that finds the value there and calls `use(x, v)`. A model calls that step, unless the
place has a text of its own for models.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Place:
    """A place.

    Args:
        name: in the field's terms.
        step: text that defines `step`, and `arguments` where it takes any.
        model: text that defines `model`, or None where the step's text stands beneath the plain model.
        files: other modules of the program, by path.
        elsewhere: the one that the value and its class are defined in; it has `@SETUP@`.
        held: an expression for the value where it stands, for edits of it in place; in models with their own text
            `held_model`.
        put: a statement that puts `@V@` there; in models with their own text `put_model`.
        whole: the module that the value stands in is passed on, so that all of it counts.
        noticed: a cached module notices without being wrapped again that another value was put there.
    """

    name: str
    step: str
    model: str | None = None
    files: Mapping[str, str] = field(default_factory=dict)
    elsewhere: str = ""
    held: str | None = None
    held_model: str | None = None
    put: str | None = None
    put_model: str | None = None
    whole: bool = False
    noticed: bool = False


_OTHER = """
@SETUP@


VALUE = @V@
"""
_MODEL_WITH = """

class Holder:
    def __init__(self, v):
        self.v = v


class Model(nn.Module):
    '''The model, @N@.'''

    def __init__(self, v):
        super().__init__()
        self.count = 3
        {keep}

    def forward(self, x):
        '''Forward, @N@.'''
        @CALLED@
        return use(x, {read})


model = Model(@V@)
"""


def _model(keep: str, read: str) -> str:
    return _MODEL_WITH.format(keep=keep, read=read)


def _object(keep: str, read: str) -> str:
    return f"""

class Holder:
    def __init__(self, v):
        self.v = v


class Step:
    '''The step, @N@.'''

    def __init__(self, v):
        self.count = 3
        {keep}

    def __call__(self, x):
        '''The call, @N@.'''
        return use(x, {read})


step = Step(@V@)
"""


ARGUMENT = Place(
    "argument",
    """

def step(x, v):
    '''The step, @N@.'''
    return use(x, v)


arguments = {"v": @V@}
""",
    held="arguments['v']",
)
GLOBAL = Place(
    "global",
    """

VALUE = @V@


def step(x):
    '''The step, @N@.'''
    return use(x, VALUE)
""",
    held="VALUE",
    put="VALUE = @V@",
)
ATTRIBUTE = Place(
    "attribute",
    _object("self.v = v", "self.v"),
    _model("self.v = v", "self.v"),
    held="step.v",
    held_model="model.v",
    put="step.v = @V@",
    put_model="model.v = @V@",
    noticed=True,
)
OTHER_MODULE = Place(
    "other module",
    """
import other


def step(x):
    return use(x, other.VALUE)
""",
    elsewhere="other",
    files={"other.py": _OTHER},
    held="other.VALUE",
    put="other.VALUE = @V@",
)
WHOLE_MODULE = Place(
    "module as a value",
    """
import other


def step(x, config):
    return use(x, getattr(config, "VALUE"))


arguments = {"config": other}
""",
    elsewhere="other",
    files={"other.py": _OTHER},
    held="other.VALUE",
    put="other.VALUE = @V@",
    whole=True,
)

PLACES = (
    ARGUMENT,
    GLOBAL,
    ATTRIBUTE,
    OTHER_MODULE,
    WHOLE_MODULE,
    Place(
        "default",
        """

def step(x, v=@V@):
    '''The step, @N@.'''
    return use(x, v)
""",
        held="step.__defaults__[0]",
        put="step.__defaults__ = (@V@,)",
    ),
    Place(
        "keyword default",
        """

def step(x, *, v=@V@):
    return use(x, v)
""",
        held="step.__kwdefaults__['v']",
        put="step.__kwdefaults__['v'] = @V@",
    ),
    Place(
        "closure",
        """

def outer(v):
    def step(x):
        return use(x, v)

    return step


step = outer(@V@)
""",
        held="step.__closure__[0].cell_contents",
        put="step.__closure__[0].cell_contents = @V@",
    ),
    Place(
        "nested attribute",
        _object("self.inner = Holder([Holder(v)])", "self.inner.v[0].v"),
        _model("self.inner = Holder([Holder(v)])", "self.inner.v[0].v"),
        held="step.inner.v[0].v",
        held_model="model.inner.v[0].v",
        put="step.inner.v[0].v = @V@",
        put_model="model.inner.v[0].v = @V@",
    ),
    Place(
        "dict value",
        """

TABLE = {"first": 1, "v": @V@}


def step(x):
    return use(x, TABLE["v"])
""",
        _model('self.table = {"first": 1, "v": v}', 'self.table["v"]'),
        held="TABLE['v']",
        held_model="model.table['v']",
        put="TABLE['v'] = @V@",
        put_model="model.table['v'] = @V@",
    ),
    Place(
        "list element",
        """

ROWS = [0, @V@]


def step(x):
    return use(x, ROWS[1])
""",
        _model("self.rows = [0, v]", "self.rows[1]"),
        held="ROWS[1]",
        held_model="model.rows[1]",
        put="ROWS[1] = @V@",
        put_model="model.rows[1] = @V@",
    ),
    Place(
        "object from another module",
        """
from other import VALUE


def step(x):
    return use(x, VALUE)
""",
        elsewhere="other",
        files={"other.py": _OTHER},
        held="VALUE",
        put="VALUE = @V@",
    ),
    Place(
        "partial argument",
        """

def full(x, v):
    return use(x, v)


step = functools.partial(full, v=@V@)
""",
        held="step.keywords['v']",
        put="step.keywords['v'] = @V@",
    ),
    Place(
        "class attribute",
        """

class Step:
    v = (@V@,)

    def __call__(self, x):
        return use(x, self.v[0])


step = Step()
""",
        """

class Model(nn.Module):
    v = (@V@,)

    def forward(self, x):
        @CALLED@
        return use(x, self.v[0])


model = Model()
""",
        held="Step.v[0]",
        held_model="Model.v[0]",
        put="Step.v = (@V@,)",
        put_model="Model.v = (@V@,)",
    ),
    Place(
        "function attribute",
        """

def step(x):
    return use(x, step.v)


step.v = @V@
""",
        held="step.v",
        put="step.v = @V@",
    ),
    Place(
        "bound method",
        _object("self.v = v", "self.v").replace("step = Step(@V@)", "owner = Step(@V@)\nstep = owner.__call__"),
        held="owner.v",
        put="owner.v = @V@",
    ),
    Place(
        "slot",
        _object("self.v = v", "self.v").replace("    '''The step", "    __slots__ = ('count', 'v')\n    '''The step"),
        held="step.v",
        put="step.v = @V@",
    ),
    Place(
        "dataclass field",
        """

@dataclasses.dataclass(eq=False)
class Step:
    v: object
    w: int = 3

    def __call__(self, x):
        return use(x, self.v)


step = Step(@V@)
""",
        held="step.v",
        put="step.v = @V@",
    ),
    Place(
        "named tuple field",
        """

class Fields(typing.NamedTuple):
    w: int
    v: object


FIELDS = Fields(3, @V@)


def step(x):
    return use(x, FIELDS.v)
""",
        held="FIELDS.v",
        put="FIELDS = Fields(3, @V@)",
    ),
    Place(
        "function body",
        """

def written_here():
    '''Written here, @N@.'''
    return @V@


def step(x):
    return use(x, written_here())
""",
        put="def written_here():\n    return @V@",
    ),
    Place(
        "submodule",
        """
import package.part


def step(x):
    return use(x, package.part.VALUE)
""",
        elsewhere="package.values",
        files={
            "package/__init__.py": "",
            "package/part.py": "from package.values import VALUE\n",
            "package/values.py": _OTHER,
        },
        held="package.part.VALUE",
        put="package.part.VALUE = @V@",
    ),
    Place(
        "import in a function",
        """

def step(x):
    from other import VALUE

    return use(x, VALUE)
""",
        elsewhere="other",
        files={"other.py": _OTHER},
        held="other.VALUE",
        put="other.VALUE = @V@",
    ),
    Place(
        "global of a function from another module",
        """
from other import current


def step(x):
    return use(x, current())
""",
        elsewhere="other",
        files={"other.py": _OTHER + "\n\ndef current():\n    '''Current, @N@.'''\n    return VALUE\n"},
        held="current()",
        put="other.VALUE = @V@",
    ),
    Place(
        "property",
        _object("self._v = v", "self.v").replace(
            "    def __call__", "    @property\n    def v(self):\n        return self._v\n\n    def __call__"
        ),
        held="step._v",
        put="step._v = @V@",
    ),
    Place(
        "decorator argument",
        """

def adding(v):
    def decorate(function):
        @functools.wraps(function)
        def around(x):
            return use(function(x), v)

        return around

    return decorate


@adding(@V@)
def step(x):
    '''The step, @N@.'''
    return x
""",
        held="step.__closure__[1].cell_contents",
        put="step.__closure__[1].cell_contents = @V@",
    ),
    Place(
        "registered function",
        """

REGISTRY = {}
VALUE = @V@


def register(function):
    REGISTRY[function.__name__] = function
    return function


@register
def registered():
    return VALUE


def step(x):
    return use(x, REGISTRY["registered"]())
""",
        held="VALUE",
        put="VALUE = @V@",
    ),
    Place(
        "attribute of a base class",
        """

class Parent:
    v = (@V@,)


class Step(Parent):
    def __call__(self, x):
        return use(x, super().v[0])


step = Step()
""",
        held="Parent.v[0]",
        put="Parent.v = (@V@,)",
    ),
)
