"""Edits of functions and what wraps them: bodies, constants, operators, closures, decorators, dispatch."""

from tests.identity.edits.edit import Edit


def _function(name: str, text: str, before: str, after: str, reading: str = "v(2)", **options: object) -> Edit:
    """An edit of a function `f`: `before` stands in its text, and `after` takes its place."""
    assert before in text, name
    return Edit(name, "f", None, reading, setup=text, setup_new=text.replace(before, after), **options)  # type: ignore[arg-type]


_GENERIC = """
    @functools.singledispatch
    def f(x):
        return 0

    @f.register
    def _(x: int):
        return 3

    @f.register
    def _(x: str):
        return 5
"""
_BEHIND = """
    def g(x):
        return f(x)
"""
_METHOD = """
    class C:
        def __init__(self, n):
            self.n = n

        def add(self, x):
            return x + self.n

        @classmethod
        def three(cls, x):
            return x + 3
"""

EDITS = [
    _function("constant", "def f(x):\n    return x + 1\n", "+ 1", "+ 2",
              change="v.__code__ = (lambda x: x + 2).__code__"),
    _function("operator", "def f(x):\n    return x + 3\n", "+", "-"),
    _function("comparison", "def f(x):\n    return x > 2\n", ">", ">="),
    _function("is for ==", "def f(x):\n    return x == 2.0\n", "== 2.0", "is 2.0"),
    _function("and for or", "def f(x):\n    return 1 if x > 5 or x > 1 else 0\n", " or ", " and "),
    _function("negation", "def f(x):\n    return 1 if x else 0\n", "if x", "if not x"),
    _function("order of operations", "def f(x):\n    return x + 3 * 2\n", "x + 3 * 2", "(x + 3) * 2"),
    _function("float for int in code", "def f(x):\n    return isinstance(3, int)\n", "3", "3.0"),
    _function("negative zero in code", "def f(x):\n    return math.copysign(1, 0.0)\n", "0.0", "-0.0"),
    _function("True for 1 in code", "def f(x):\n    return type(1) is int\n", "type(1)", "type(True)"),
    _function("tuple in code", "def f(x):\n    return (1, 2, 3)[x]\n", "(1, 2, 3)", "(1, 2, 4)"),
    _function("set in code", "def f(x):\n    return x in {2, 3}\n", "{2, 3}", "{4, 3}"),
    _function("dict in code", "def f(x):\n    return {2: 3}[x]\n", "{2: 3}", "{2: 4}"),
    _function("str in code", "def f(x):\n    return len('ab') + x\n", "'ab'", "'abc'"),
    _function("attribute name", "def f(x):\n    return complex(1, x).imag\n", "imag", "real"),
    _function("global name", "A, B = 3, 4\n\ndef f(x):\n    return A\n", "return A", "return B"),
    _function("called name", "def f(x):\n    return min(x, 3)\n", "min", "max"),
    _function("default", "def f(x, y=3):\n    return x + y\n", "y=3", "y=4", change="v.__defaults__ = (4,)"),
    _function("keyword-only default", "def f(x, *, y=3):\n    return x + y\n", "y=3", "y=4",
              change="v.__kwdefaults__ = {'y': 4}"),
    _function("order of parameters", "def f(x=1, y=2):\n    return x\n", "x=1, y=2", "y=1, x=2", "v(5, 7)"),
    _function("star arguments", "def g(*args, **named):\n    return args[0] + named['k']\n\ndef f(x):\n"
              "    return g(*[x], **{'k': 3})\n", "'k': 3", "'k': 4"),
    _function("position-only parameter", "def f(x, /, **named):\n    return named.get('x', 0) + x\n", "x, /, **",
              "x, **",
              "len(inspect.signature(v).parameters['x'].kind.name)", refusable=True),
    _function("annotation that is read", "def f(x: int):\n    return x\n", "int", "str",
              "v.__annotations__['x'] is int", change="v.__annotations__['x'] = str"),
    _function("signature that is read", "def f(x, y=3):\n    return x\n", "y=3", "y=4",
              "inspect.signature(v).parameters['y'].default", refusable=True),
    _function("docstring that is read", "def f(x):\n    '''ab'''\n    return x\n", "'''ab'''", "'''abc'''",
              "len(v.__doc__)", change="v.__doc__ = 'abc'"),
    _function("name that is read", "def g(x):\n    return x\n\nf = g\n", "g", "gg", "len(v.__name__)"),
    _function("attribute of a function", "def f(x):\n    return x\n\nf.n = 3\n", "f.n = 3", "f.n = 4", "v.n",
              change="v.n = 4"),
    _function("source that is read", "def f(x):\n    return x  # ab\n", "# ab", "# abc", "len(inspect.getsource(v))",
              refusable=True),
    _function("helper", "def g(x):\n    return x + 1\n\ndef f(x):\n    return g(x)\n", "x + 1", "x + 2"),
    _function("helper of a helper", "def h(x):\n    return x + 1\n\ndef g(x):\n    return h(x)\n\ndef f(x):\n"
              "    return g(x)\n", "x + 1", "x + 2"),
    _function("mutual recursion", "def g(x):\n    return f(x - 1) + 1 if x else 0\n\ndef f(x):\n"
              "    return g(x - 1) + 2 if x else 0\n", "+ 1 if", "+ 5 if"),
    _function("global of a helper", "N = 3\n\ndef g(x):\n    return x + N\n\ndef f(x):\n    return g(x)\n", "N = 3",
              "N = 4"),
    _function("helper that a global names",
              "def g(x):\n    return x + 1\n\ndef h(x):\n    return x + 2\n\nACTION = g\n\n"
              "def f(x):\n    return ACTION(x)\n", "ACTION = g", "ACTION = h"),
    _function("helper in a dict", "def g(x):\n    return x + 1\n\nLOOKUP = {'g': g}\n\ndef f(x):\n"
              "    return LOOKUP['g'](x)\n", "+ 1", "+ 2"),
    _function("lambda in a list", "LOOKUP = [lambda x: x + 1]\n\ndef f(x):\n    return LOOKUP[0](x)\n", "+ 1", "+ 2"),
    _function("nested function", "def f(x):\n    def g(y):\n        return y + 1\n\n    return g(x)\n", "+ 1", "+ 2"),
    _function("default of a nested function", "def f(x):\n    def g(y=1):\n        return y\n\n    return g() + x\n",
              "y=1", "y=2"),
    _function("comprehension", "def f(x):\n    return sum([n + 1 for n in range(x)])\n", "+ 1", "+ 2"),
    _function("condition of a comprehension", "def f(x):\n    return sum([n for n in range(9) if n > 1])\n", "> 1",
              "> 2"),
    _function("dict comprehension", "def f(x):\n    return {n: n + 1 for n in range(3)}[x]\n", "n + 1", "n + 2"),
    _function("generator expression", "def f(x):\n    return sum(n + 1 for n in range(x))\n", "+ 1", "+ 2"),
    _function("global in a comprehension", "N = 3\n\ndef f(x):\n    return sum([n + N for n in range(x)])\n",
              "N = 3", "N = 4"),
    _function("generator function", "def g(x):\n    yield x + 1\n\ndef f(x):\n    return next(g(x))\n", "+ 1", "+ 2"),
    _function("yield from", "def g():\n    yield from (3, 5)\n\ndef f(x):\n    return next(g())\n", "(3, 5)", "(4, 5)"),
    _function("coroutine", "async def g(x):\n    return x + 1\n\ndef f(x):\n    try:\n        g(x).send(None)\n"
              "    except StopIteration as done:\n        return done.value\n", "+ 1", "+ 2"),
    _function("except clause", "def f(x):\n    try:\n        return [][x]\n    except IndexError:\n        return 3\n",
              "return 3", "return 4"),
    _function("caught exception",
              "def f(x):\n    try:\n        try:\n            return [][x]\n        except IndexError:\n"
              "            return 3\n    except LookupError:\n        return 4\n", "except IndexError",
              "except KeyError"),
    _function("finally", "def f(x):\n    found = [1]\n    try:\n        pass\n    finally:\n        found.append(2)\n"
              "    return sum(found)\n", "append(2)", "append(3)"),
    _function("with", "def f(x):\n    with contextlib.nullcontext(3) as found:\n        return found\n",
              "nullcontext(3)", "nullcontext(4)"),
    _function("match", "def f(x):\n    match x:\n        case 2:\n            return 3\n        case _:\n"
              "            return 4\n", "case 2", "case 5"),
    _function("walrus", "def f(x):\n    return (y := x + 1) + y\n", "+ 1", "+ 2"),
    _function("unpacking", "def f(x):\n    a, *b = (1, 2, 3)\n    return a\n", "a, *b", "*b, a"),
    _function("augmented assignment", "def f(x):\n    x += 3\n    return x\n", "+=", "-="),
    _function("loop", "def f(x):\n    for n in range(3):\n        x += 1\n    return x\n", "range(3)", "range(4)"),
    _function("break", "def f(x):\n    for n in range(3):\n        x += 1\n        if n == 1:\n            break\n"
              "    return x\n", "break", "continue"),
    _function("else of a loop",
              "def f(x):\n    for n in range(3):\n        pass\n    else:\n        x += 3\n    return x\n",
              "x += 3", "x += 4"),
    _function("f-string", "def f(x):\n    return len(f'{x:3}')\n", ":3", ":4"),
    _function("slice in code", "def f(x):\n    return sum([1, 2, 3, 4][1:3])\n", "1:3", "1:4"),
    _function("ternary", "def f(x):\n    return 3 if x else 4\n", "3 if x else 4", "4 if x else 3"),
    _function("del", "def f(x):\n    found = {1: 1, 2: 5}\n    del found[1]\n    return sum(found.values())\n", "[1]\n",
              "[2]\n"),
    _function("assertion", "def f(x):\n    try:\n        assert x > 1\n    except AssertionError:\n        return 1\n"
              "    return 2\n", "x > 1", "x > 2"),
    _function("nonlocal", "def f(x):\n    def g():\n        nonlocal x\n        x += 1\n\n    g()\n    return x\n",
              "+= 1", "+= 2"),
    _function("local import", "def f(x):\n    from math import floor as g\n\n    return g(x + 0.5)\n", "floor", "ceil"),
    _function("imported name", "from math import floor as g\n\ndef f(x):\n    return g(x + 0.5)\n", "floor", "ceil"),
    _function("alias of a module", "import math as m\n\ndef f(x):\n    return abs(m.sqrt(2)) + ('c' in m.__name__)\n",
              "import math as", "import cmath as"),
    _function("conditional import", "USE = True\nif USE:\n    from math import floor as g\nelse:\n"
              "    from math import ceil as g\n\ndef f(x):\n    return g(x + 0.5)\n", "USE = True", "USE = False"),
    _function("closure cell", "def outer(k):\n    def f(x):\n        return x + k\n\n    return f\n\nf = outer(3)\n",
              "outer(3)", "outer(4)", change="v.__closure__[0].cell_contents = 4"),
    _function("two closure cells swapped", "def outer(a, b):\n    return lambda x: x + a - b\n\nf = outer(3, 5)\n",
              "outer(3, 5)", "outer(5, 3)"),
    _function("function in a closure", "def outer(g):\n    return lambda x: g(x)\n\nf = outer(lambda x: x + 1)\n",
              "x + 1", "x + 2"),
    _function("closure of a closure", "def outer(k):\n    def middle():\n        return lambda x: x + k\n\n"
              "    return middle()\n\nf = outer(3)\n", "outer(3)", "outer(4)"),
    _function("decorator", "def plus(g):\n    @functools.wraps(g)\n    def around(x):\n        return g(x) + 1\n\n"
              "    return around\n\n@plus\ndef f(x):\n    return x\n", "+ 1", "+ 2"),
    _function("decorated function",
              "def plus(g):\n    @functools.wraps(g)\n    def around(x):\n        return g(x) + 1\n\n"
              "    return around\n\n@plus\ndef f(x):\n    return x * 3\n", "x * 3", "x * 4"),
    _function("order of decorators", "def plus(g):\n    return lambda x: g(x) + 1\n\ndef times(g):\n"
              "    return lambda x: g(x) * 2\n\n@plus\n@times\ndef f(x):\n    return x\n", "@plus\n@times",
              "@times\n@plus"),
    _function("decorating object", "class Plus:\n    def __init__(self, g):\n        self.g = g\n\n"
              "    def __call__(self, x):\n        return self.g(x) + 1\n\n@Plus\ndef f(x):\n    return x\n", "+ 1",
              "+ 2"),
    _function("wrapped original", "def plus(g):\n    @functools.wraps(g)\n    def around(x):\n"
              "        return around.__wrapped__(x)\n\n    return around\n\n@plus\ndef f(x):\n    return x * 3\n",
              "x * 3", "x * 4"),
    _function("context manager function", "@contextlib.contextmanager\ndef g():\n    yield 3\n\ndef f(x):\n"
              "    with g() as found:\n        return found\n", "yield 3", "yield 4"),
    _function("lru_cache", "@functools.lru_cache\ndef f(x):\n    return x + 1\n", "+ 1", "+ 2"),
    _function("helper beneath lru_cache",
              "def g(x):\n    return x + 1\n\n@functools.lru_cache(maxsize=None)\ndef f(x):\n"
              "    return g(x)\n", "+ 1", "+ 2"),
    _function("lru_cache of a method",
              "class C:\n    @functools.lru_cache\n    def m(self, x):\n        return x + 1\n\n"
              "c = C()\n\ndef f(x):\n    return c.m(x)\n", "+ 1", "+ 2"),
    _function("singledispatch", _GENERIC, "return 3", "return 4"),
    _function("registered type of singledispatch", _GENERIC, "x: int", "x: float"),
    _function("added implementation of singledispatch", _GENERIC + "\n    # more\n", "# more",
              "f.register(int, lambda x: 7)", change="v.register(int, lambda x: 7)"),
    Edit("singledispatch behind a function", "g", None, "v(2)", _GENERIC + _BEHIND,
         _GENERIC.replace("return 3", "return 4") + _BEHIND),
    _function("singledispatchmethod",
              "class C:\n    @functools.singledispatchmethod\n    def m(self, x):\n        return 0\n\n"
              "    @m.register\n    def _(self, x: int):\n        return 3\n\nf = C().m\n", "return 3", "return 4"),
    _function("overloads in a dict",
              "LOOKUP = {}\n\ndef on(kind):\n    def add(g):\n        LOOKUP[kind] = g\n        return g\n\n"
              "    return add\n\n@on(int)\ndef g(x):\n    return 3\n\ndef f(x):\n    return LOOKUP[type(x)](x)\n",
              "return 3", "return 4"),
    _function("code that exec made", "space = {}\nexec('def f(x): return x + 1', space)\nf = space['f']\n", "+ 1",
              "+ 2"),
    _function("lambda that eval made", "f = eval('lambda x: x + 1')\n", "+ 1", "+ 2"),
    _function("replaced code object", "def f(x):\n    return x + 1\n\nf.__code__ = (lambda x: x + 3).__code__\n",
              "x + 3", "x + 4"),
    _function("function with its own globals", "f = types.FunctionType((lambda x: x + N).__code__, {'N': 3})\n",
              "'N': 3", "'N': 4", change="v.__globals__['N'] = 4"),
    Edit("lambda", "lambda x: x + 1", "lambda x: x + 2", "v(1)", change="v.__code__ = (lambda x: x + 2).__code__"),
    Edit("lambda of an operator", "lambda x: x + 3", "lambda x: x * 3", "v(2)"),
    Edit("partial keyword", "functools.partial(round, ndigits=1)", "functools.partial(round, ndigits=2)", "v(0.123)",
         change="v.keywords['ndigits'] = 2"),
    Edit("order of a partial's keywords", "functools.partial(f, one=one, two=two)",
         "functools.partial(f, two=two, one=one)", "v(2)", """
             def one(x):
                 return x + 1

             def two(x):
                 return x * 2

             def f(x, **functions):
                 for function in functions.values():
                     x = function(x)
                 return x
         """),
    Edit("partial argument", "functools.partial(pow, 3)", "functools.partial(pow, 4)", "v(2)"),
    Edit("function of a partial", "functools.partial(min, 3)", "functools.partial(max, 3)", "v(2)"),
    Edit("partial of a function", "functools.partial(f, 3)", None, "v(2)", "def f(a, b):\n    return a + b\n",
         "def f(a, b):\n    return a - b\n"),
    Edit("attribute of a partial", "made(3)", "made(4)", "v.n",
         "def made(n):\n    found = functools.partial(min, 3)\n    found.n = n\n    return found\n", change="v.n = 4"),
    Edit("builtin", "min", "max", "v(1, 2)"),
    Edit("function of a C module", "math.floor", "math.ceil", "v(0.5)"),
    Edit("function of the operator module", "operator.add", "operator.sub", "v(3, 2)"),
    Edit("itemgetter", "operator.itemgetter(0)", "operator.itemgetter(1)", "v([3, 4])"),
    Edit("attrgetter", "operator.attrgetter('real')", "operator.attrgetter('imag')", "v(1 + 2j)"),
    Edit("methodcaller", "operator.methodcaller('count', 'a')", "operator.methodcaller('count', 'b')", "v('aab')"),
    Edit("universal function", "np.floor", "np.ceil", "v(0.5)"),
    Edit("NumPy function", "np.mean", "np.sum", "v([1, 3])"),
    Edit("vectorized function", "np.vectorize(lambda x: x + 1)", "np.vectorize(lambda x: x + 2)", "v([1])[0]"),
    Edit("frompyfunc", "np.frompyfunc(f, 1, 1)", None, "v(1)", "def f(x):\n    return x + 1\n",
         "def f(x):\n    return x + 2\n",
         refusable=True),
    Edit("polynomial", "np.poly1d([1, 2])", "np.poly1d([1, 3])", "v(1)", layout=True),
    Edit("bound method's object", "C(3).add", "C(4).add", "v(1)", _METHOD, change="v.__self__.n = 4"),
    Edit("bound method's code", "C(3).add", None, "v(1)", _METHOD, _METHOD.replace("x + self.n", "x - self.n")),
    Edit("bound class method", "C.three", None, "v(1)", _METHOD, _METHOD.replace("x + 3", "x + 4")),
    Edit("method that is not bound", "C.add", None, "v(C(1), 1)", _METHOD, _METHOD.replace("x + self.n", "x - self.n")),
    Edit("bound method of a str", "'ab'.find", "'ba'.find", "v('b')"),
    Edit("bound method of a dict", "{1: 3}.get", "{1: 4}.get", "v(1)", change="v.__self__[1] = 4"),
    Edit("bound method of a list", "[3, 4].__getitem__", "[4, 3].__getitem__", "v(0)"),
    Edit("bound method of a pattern", "re.compile('a+').findall", "re.compile('a').findall", "len(v('aaa'))"),
    Edit("bound method of a Random", "random.Random(3).getrandbits", "random.Random(4).getrandbits",
         "copy.deepcopy(v.__self__).getrandbits(32) % 1000"),
    Edit("method descriptor", "str.upper", "str.lower", "v('a') == 'A'"),
    Edit("class as a callable", "int", "float", "v('3') / 2 + (v is int)"),
    Edit("memo of a decorator", "f", None, "v(2)",
         "def memo(g):\n    seen = {}\n\n    def around(x):\n        if x not in seen:\n            seen[x] = g(x)\n"
         "        return seen[x]\n\n    return around\n\n@memo\ndef f(x):\n    return x + 1\n",
         "def memo(g):\n    seen = {}\n\n    def around(x):\n        if x not in seen:\n            seen[x] = g(x)\n"
         "        return seen[x]\n\n    return around\n\n@memo\ndef f(x):\n    return x + 2\n"),
]  # fmt: skip
