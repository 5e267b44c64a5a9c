"""Edits of plain values: numbers, text, bytes, times, and what the standard library makes of them."""

from tests.identity.edits.edit import Edit

EDITS = [
    Edit("int", "3", "4"),
    Edit("large int", "2**80", "2**80 + 1", "v % 1000"),
    Edit("bool", "True", "False"),
    Edit("int for bool", "True", "1", "type(v) is bool"),
    Edit("float", "0.5", "0.25"),
    Edit("last bit of a float", "0.1 + 0.2", "0.3", "(v - 0.3) * 1e17"),
    Edit("float for int", "2", "2.0", "type(v) is int"),
    Edit("negative zero", "0.0", "-0.0", "math.copysign(1, v)"),
    Edit("nan", "math.nan", "math.inf", "math.isnan(v)"),
    Edit("sign of nan", "math.nan", "-math.nan", "math.copysign(1, v)"),
    Edit("complex", "1 + 2j", "1 + 3j", "v.imag"),
    Edit("negative zero of a complex", "complex(1, 0.0)", "complex(1, -0.0)", "math.copysign(1, v.imag)"),
    Edit("None", "None", "0", "v is None"),
    Edit("ellipsis", "...", "None", "v is ..."),
    Edit("NotImplemented", "NotImplemented", "None", "v is None"),
    Edit("str", "'ab'", "'ac'", "ord(v[1])"),
    Edit("str of another normal form", "'\\u00e9'", "'e\\u0301'", "len(v)"),
    Edit("lone surrogate", "'\\ud800'", "'\\ud801'", "ord(v)"),
    Edit("bytes", "b'ab'", "b'ac'", "v[1]"),
    Edit("bytes for str", "'a'", "b'a'", "type(v) is str"),
    Edit("bytearray", "bytearray(b'ab')", "bytearray(b'ac')", "v[1]", change="v[1] = 99"),
    Edit("bytearray for bytes", "b'ab'", "bytearray(b'ab')", "type(v) is bytes"),
    Edit("memoryview", "memoryview(b'ab')", "memoryview(b'ac')", "v[1]"),
    Edit("format of a memoryview", "memoryview(bytes(8))", "memoryview(bytes(8)).cast('i')", "len(v)"),
    Edit("range", "range(3)", "range(4)", "len(v)"),
    Edit("slice", "slice(0, 3)", "slice(0, 4)", "v.stop"),
    Edit("array.array", "array.array('i', [1, 2])", "array.array('i', [1, 3])", "v[1]", change="v[1] = 3"),
    Edit("type code of an array.array", "array.array('i', [1])", "array.array('l', [1])", "v.typecode == 'i'"),
    Edit("Fraction", "fractions.Fraction(1, 3)", "fractions.Fraction(1, 4)"),
    Edit("Decimal", "decimal.Decimal('1.5')", "decimal.Decimal('1.25')"),
    Edit("exponent of a Decimal", "decimal.Decimal('1.0')", "decimal.Decimal('1.00')", "v.as_tuple().exponent"),
    Edit("decimal context as a value", "decimal.Context(prec=3)", "decimal.Context(prec=9)",
         "v.divide(decimal.Decimal(1), decimal.Decimal(3))", change="v.prec = 9"),
    Edit("date", "datetime.date(2024, 1, 2)", "datetime.date(2024, 1, 3)", "v.day"),
    Edit("datetime", "datetime.datetime(2024, 1, 2, 3)", "datetime.datetime(2024, 1, 2, 4)", "v.hour"),
    Edit("fold of a datetime", "datetime.datetime(2024, 1, 2)", "datetime.datetime(2024, 1, 2, fold=1)", "v.fold"),
    Edit("time zone", "datetime.timezone.utc", "datetime.timezone(datetime.timedelta(hours=1))",
         "v.utcoffset(None).total_seconds()"),
    Edit("timedelta", "datetime.timedelta(1)", "datetime.timedelta(2)", "v.days"),
    Edit("zone", "zoneinfo.ZoneInfo('Europe/Berlin')", "zoneinfo.ZoneInfo('Asia/Tokyo')",
         "v.utcoffset(datetime.datetime(2024, 1, 1)).total_seconds()", setup="import zoneinfo", needs=("tzdata",)),
    Edit("uuid", "uuid.UUID(int=3)", "uuid.UUID(int=4)", "v.int", setup="import uuid"),
    Edit("address", "ipaddress.ip_address('10.0.0.1')", "ipaddress.ip_address('10.0.0.2')", "int(v) % 256",
         setup="import ipaddress"),
    Edit("pattern", "re.compile('a+')", "re.compile('a')", "len(v.findall('aaa'))"),
    Edit("flags of a pattern", "re.compile('a')", "re.compile('a', re.I)", "len(v.findall('aA'))"),
    Edit("match", "re.match('(a)(b)?', 'ab')", "re.match('(a)(b)?', 'a')", "v.end()", refusable=True),
    Edit("pure path", "pathlib.PurePosixPath('a/b')", "pathlib.PurePosixPath('a/b/c')", "len(v.parts)"),
    Edit("kind of a pure path", "pathlib.PurePosixPath('a\\\\b')", "pathlib.PureWindowsPath('a\\\\b')", "len(v.parts)"),
    Edit("str that names no file", "'no/such/file.txt'", "'no/such/file.csv'", "v.endswith('csv')"),
    Edit("struct", "struct.Struct('<i')", "struct.Struct('<q')", "v.size", setup="import struct"),
    Edit("random.Random", "random.Random(3)", "random.Random(4)", "copy.deepcopy(v).random()", change="v.random()"),
    Edit("string template", "string.Template('$a')", "string.Template('$a$a')", "len(v.substitute(a='b'))",
         setup="import string"),
    Edit("object of the standard library", "textwrap.TextWrapper(width=20)", "textwrap.TextWrapper(width=30)",
         "len(v.wrap('a ' * 50))", setup="import textwrap", change="v.width = 30"),
    Edit("json encoder", "json.JSONEncoder(indent=1)", "json.JSONEncoder(indent=2)", "len(v.encode([1]))",
         change="v.indent = 2"),
    Edit("io.StringIO", "io.StringIO('ab')", "io.StringIO('abc')", "len(v.getvalue())", refusable=True),
    Edit("io.BytesIO", "io.BytesIO(b'ab')", "io.BytesIO(b'abc')", "len(v.getvalue())", refusable=True),
    Edit("generator", "endless(3)", "endless(4)", "next(v)", refusable=True,
         setup="def endless(n):\n    while True:\n        yield n\n"),
    Edit("itertools.count", "itertools.count(3)", "itertools.count(4)", "next(copy.copy(v))", refusable=True),
    Edit("itertools.cycle", "itertools.cycle([3])", "itertools.cycle([4])", "next(copy.copy(v))", refusable=True),
    Edit("iterator of a list", "iter([3])", "iter([4])", "next(copy.copy(v))", refusable=True),
    Edit("weak reference", "weakref.ref(TARGETS[0])", "weakref.ref(TARGETS[1])", "v().n", refusable=True,
         setup="""
             class Target:
                 def __init__(self, n):
                     self.n = n

             TARGETS = [Target(3), Target(4)]
         """),
    Edit("context variable", "made(3)", "made(4)", "v.get()", change="v.set(4)", refusable=True,
         setup="""
             import contextvars

             def made(n):
                 variable = contextvars.ContextVar("n")
                 variable.set(n)
                 return variable
         """),
    Edit("thread-local", "made(3)", "made(4)", "v.n", change="v.n = 4", refusable=True,
         setup="""
             def made(n):
                 local = threading.local()
                 local.n = n
                 return local
         """),
    Edit("open file", "opened('ab')", "opened('abc')", "len(v.read() or (v.seek(0) or v.read()))", refusable=True,
         setup="""
             def opened(text):
                 path = pathlib.Path(__file__).with_name("opened.txt")
                 path.write_text(text)
                 return open(path)
         """),
    Edit("exception", "ValueError(3)", "ValueError(4)", "v.args[0]", change="v.args = (4,)"),
    Edit("type", "int", "float", "v is int"),
    Edit("generic alias", "list[int]", "list[float]", "v.__args__[0] is int"),
    Edit("union", "int | str", "int | float", "isinstance(0.5, v)"),
    Edit("event that is asked", "event(True)", "event(False)", "v.is_set()", change="v.clear()", setup="""
             def event(is_set):
                 found = threading.Event()
                 if is_set:
                     found.set()
                 return found
         """),
    Edit("extra of a logger adapter", "logging.LoggerAdapter(logging.getLogger('a'), {'n': 3})",
         "logging.LoggerAdapter(logging.getLogger('a'), {'n': 4})", "v.extra['n']", setup="import logging\n",
         change="v.extra['n'] = 4"),
    Edit("cause of an exception", "caused(3)", "caused(4)", "v.__cause__.args[0]", change="v.__cause__ = OSError(4)",
         setup="""
             def caused(n):
                 found = ValueError(1)
                 found.__cause__ = OSError(n)
                 return found
         """),
    Edit("typing alias", "typing.Optional[int]", "typing.Optional[str]", "isinstance(3, typing.get_args(v)[0])"),
    Edit("bound of a type variable", "typing.TypeVar('X', bound=int)", "typing.TypeVar('X', bound=str)",
         "v.__bound__ is int"),
    Edit("metadata of a type", "typing.Annotated[int, 3]", "typing.Annotated[int, 4]", "typing.get_args(v)[1]"),
    Edit("forward reference", "typing.ForwardRef('int')", "typing.ForwardRef('str')", "v.__forward_arg__ == 'int'"),
    Edit("new type", "typing.NewType('N', int)", "typing.NewType('N', str)", "v.__supertype__ is int"),
    Edit("literal type", "typing.Literal[3]", "typing.Literal[4]", "typing.get_args(v)[0]"),
    Edit("module of the standard library", "math", "__import__('cmath')", "abs(v.sqrt(2)) + ('c' in v.__name__)"),
]  # fmt: skip
