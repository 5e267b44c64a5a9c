"""Edits of NumPy arrays and scalars, and of what pandas, SciPy, Arrow and Pillow hold."""

from tests.identity.edits.edit import Edit

_TAGGED = """
    class Tagged(np.ndarray):
        def __array_finalize__(self, other):
            self.tag = getattr(other, "tag", 0)

        def twice(self):
            return self[0] * 2


    def tagged(tag):
        found = np.arange(3.0).view(Tagged) + 1
        found.tag = tag
        return found
"""

EDITS = [
    Edit("array content", "np.array([1.0, 3.0])", "np.array([1.0, 4.0])", "v[1]", change="v[1] = 4", layout=True),
    Edit("array dtype", "np.array([1.0])", "np.array([1.0], np.float32)", "v.dtype.itemsize"),
    Edit("array byte order", "np.array([1.0], '<f8')", "np.array([1.0], '>f8')", "v.dtype.byteorder == '>'"),
    Edit("array shape", "np.zeros((2, 3))", "np.zeros((3, 2))", "v.shape[0]", change="v.shape = (3, 2)"),
    Edit("array layout", "np.zeros((2, 3))", "np.zeros((2, 3), order='F')", "v.flags.f_contiguous"),
    Edit("array strides", "np.zeros((2, 3))", "np.zeros((4, 3))[::2]", "v.strides[0]"),
    Edit("array for scalar", "np.float64(1)", "np.array(1.0)", "isinstance(v, np.ndarray)"),
    Edit("list for array", "[1.0]", "np.array([1.0])", "isinstance(v, list)"),
    Edit("last bit of an array", "np.array([0.1 + 0.2])", "np.array([0.3])", "(v[0] - 0.3) * 1e17", layout=True),
    Edit("negative zero in an array", "np.array([0.0])", "np.array([-0.0])", "np.copysign(1, v[0])", layout=True),
    Edit("payload of a nan", "np.array([np.nan])", "np.array([0x7FF8000000000001]).view('f8')",
         "v.view('i8')[0] % 7", layout=True),
    Edit("array flag", "np.zeros(3)", "locked()", "v.flags.writeable", refusable=True,
         setup="def locked():\n    found = np.zeros(3)\n    found.flags.writeable = False\n    return found\n"),
    Edit("large array's middle", "np.zeros(100_000)", "changed()", "v[50_000]", change="v[50_000] = 3", layout=True,
         setup="def changed():\n    found = np.zeros(100_000)\n    found[50_000] = 3\n    return found\n"),
    Edit("object array", "np.array([1, 'a', None], object)", "np.array([2, 'a', None], object)", "v[0]",
         change="v[0] = 2"),
    Edit("lists in an object array", "held([1])", "held([2])", "v[0][0]", change="v[0][0] = 2",
         setup="def held(value):\n    found = np.empty(1, object)\n    found[0] = value\n    return found\n"),
    Edit("structured array", "np.array([(1, 2)], 'i4,i4')", "np.array([(1, 3)], 'i4,i4')", "v[0][1]",
         change="v[0][1] = 3",
         layout=True),
    Edit("field names of an array", "np.array([(1, 2)], [('a', 'i4'), ('b', 'i4')])",
         "np.array([(1, 2)], [('b', 'i4'), ('a', 'i4')])", "v['a'][0]"),
    Edit("text array", "np.array(['ab'])", "np.array(['ac'])", "ord(v[0][1])", layout=True),
    Edit("variable-width text array", "np.array(['ab'], np.dtypes.StringDType())",
         "np.array(['ac'], np.dtypes.StringDType())", "ord(v[0][1])"),
    Edit("datetime array", "np.array(['2024-01-01'], 'M8[D]')", "np.array(['2024-01-02'], 'M8[D]')",
         "v.astype('i8')[0]",
         layout=True),
    Edit("unit of a datetime array", "np.array([1], 'm8[s]')", "np.array([1], 'm8[ms]')",
         "v[0] / np.timedelta64(1, 'ms')"),
    Edit("masked array", "np.ma.array([1, 3], mask=[0, 0])", "np.ma.array([1, 3], mask=[0, 1])", "v.sum()",
         change="v.mask = [0, 1]"),
    Edit("fill value of a masked array", "np.ma.array([1], fill_value=3)", "np.ma.array([1], fill_value=4)",
         "v.fill_value",
         change="v.fill_value = 4"),
    Edit("attribute of an ndarray subclass", "tagged(3)", "tagged(4)", "v.tag", _TAGGED, change="v.tag = 4"),
    Edit("method of an ndarray subclass", "tagged(3)", None, "v.twice()", _TAGGED, _TAGGED.replace("* 2", "* 3"),
         change="type(v).twice = lambda self: self[0] * 3"),
    Edit("ndarray subclass for ndarray", "np.arange(3.0)", "tagged(0)", "hasattr(v, 'tag')", _TAGGED),
    Edit("recarray for array", "np.zeros(1, 'i4,i4')", "np.zeros(1, 'i4,i4').view(np.recarray)", "hasattr(v, 'f0')"),
    Edit("matrix for array", "np.eye(2) + 1", "np.matrix(np.eye(2) + 1)", "np.asarray(v * v)[0, 0]"),
    Edit("memory map", "mapped(3)", "mapped(4)", "v[0]", change="v[0] = 4", layout=True,
         setup="""
             def mapped(n):
                 path = pathlib.Path(__file__).with_name("mapped.bin")
                 found = np.memmap(path, "i8", "w+", shape=2)
                 found[0] = n
                 found.flush()
                 return found
         """),
    Edit("NumPy scalar", "np.float64(3)", "np.float64(4)"),
    Edit("kind of a NumPy scalar", "np.float64(0.1)", "np.float32(0.1)", "v.itemsize"),
    Edit("NumPy scalar for a number", "3", "np.int64(3)", "type(v) is int"),
    Edit("float64 for float", "0.5", "np.float64(0.5)", "type(v) is float"),
    Edit("NumPy bool for bool", "True", "np.True_", "v is True"),
    Edit("complex scalar", "np.complex128(1 + 2j)", "np.complex128(1 + 3j)", "v.imag"),
    Edit("datetime64", "np.datetime64('2024-01-01')", "np.datetime64('2024-01-02')", "v.astype('i8')"),
    Edit("text scalar", "np.str_('ab')", "np.str_('ac')", "ord(v[1])"),
    Edit("void scalar", "np.array([(1, 2)], 'i4,i4')[0]", "np.array([(1, 3)], 'i4,i4')[0]", "v[1]"),
    Edit("dtype", "np.dtype('f8')", "np.dtype('f4')", "v.itemsize"),
    Edit("class of a dtype", "np.float64", "np.float32", "v(0) is not None and np.dtype(v).itemsize"),
    Edit("metadata of a dtype", "np.dtype('f8', metadata={'n': 3})", "np.dtype('f8', metadata={'n': 4})",
         "v.metadata['n']"),
    Edit("Generator", "np.random.default_rng(3)", "np.random.default_rng(4)", "copy.deepcopy(v).random()",
         change="v.random()"),
    Edit("bit generator", "np.random.Generator(np.random.PCG64(3))", "np.random.Generator(np.random.MT19937(3))",
         "copy.deepcopy(v).random()"),
    Edit("RandomState", "np.random.RandomState(3)", "np.random.RandomState(4)", "copy.deepcopy(v).rand()",
         change="v.rand()"),
    Edit("SeedSequence", "np.random.SeedSequence(3)", "np.random.SeedSequence(4)",
         "copy.deepcopy(v).generate_state(1)[0] % 1000"),
    Edit("iterator of an array", "np.nditer(np.array([3.0]))", "np.nditer(np.array([4.0]))", "v.copy()[0]",
         refusable=True),
    Edit("array of arrays", "[np.zeros(2), np.zeros(3)]", "[np.zeros(2), np.ones(3)]", "v[1][0]", change="v[1][0] = 1",
         layout=True),
    Edit("arrays that share memory", "shared(True)", "shared(False)", "shifted(v)", refusable=True,
         setup="""
             def shared(yes):
                 found = np.zeros(4)
                 return [found, found[1:] if yes else np.zeros(3)]

             def shifted(v):
                 return np.shares_memory(v[0], v[1])
         """),
    # Other libraries.
    Edit("DataFrame", "pd.DataFrame({'a': [1, 3]})", "pd.DataFrame({'a': [1, 4]})", "v['a'][1]", "import pandas as pd",
         change="v.loc[1, 'a'] = 4", needs=("pandas",)),
    Edit("order of columns", "pd.DataFrame({'a': [1], 'b': [2]})", "pd.DataFrame({'b': [2], 'a': [1]})", "v.iloc[0, 0]",
         "import pandas as pd", needs=("pandas",)),
    Edit("index of a DataFrame", "pd.DataFrame({'a': [1]}, index=[3])", "pd.DataFrame({'a': [1]}, index=[4])",
         "v.index[0]", "import pandas as pd", change="v.index = [4]", needs=("pandas",)),
    Edit("attribute of a DataFrame", "labelled(3)", "labelled(4)", "v.label", """
             import pandas as pd

             def labelled(n):
                 found = pd.DataFrame({'a': [1, 3]})
                 found.label = n
                 return found
         """, change="v.label = 4", needs=("pandas",)),
    Edit("type of a column", "pd.Series([1])", "pd.Series([1.0])", "v.dtype.kind == 'i'", "import pandas as pd",
         needs=("pandas",)),
    Edit("name of a Series", "pd.Series([1], name='a')", "pd.Series([1], name='ab')", "len(v.name)",
         "import pandas as pd",
         change="v.name = 'ab'", needs=("pandas",)),
    Edit("order of categories", "pd.Series(pd.Categorical(['a'], ['a', 'b']))",
         "pd.Series(pd.Categorical(['a'], ['b', 'a']))",
         "v.cat.codes[0]", "import pandas as pd", needs=("pandas",)),
    Edit("attributes of a DataFrame", "made(3)", "made(4)", "v.attrs['n']",
         "import pandas as pd\n\ndef made(n):\n    found = pd.DataFrame({'a': [1]})\n    found.attrs['n'] = n\n"
         "    return found\n", change="v.attrs['n'] = 4", needs=("pandas",)),
    Edit("Timestamp", "pd.Timestamp('2024-01-01')", "pd.Timestamp('2024-01-02')", "v.day", "import pandas as pd",
         needs=("pandas",)),
    Edit("sparse matrix", "sparse.csr_matrix([[0, 3]])", "sparse.csr_matrix([[0, 4]])", "v.sum()",
         "from scipy import sparse", change="v.data[0] = 4", layout=True, needs=("scipy",)),
    Edit("position in a sparse matrix", "sparse.csr_matrix([[0, 3]])", "sparse.csr_matrix([[3, 0]])", "v[0, 0]",
         "from scipy import sparse", layout=True, needs=("scipy",)),
    Edit("interpolator", "CubicSpline([0, 1, 2], [0, 1, 0])", "CubicSpline([0, 1, 2], [0, 2, 0])", "v(0.5)",
         "from scipy.interpolate import CubicSpline", layout=True, needs=("scipy",)),
    Edit("tree of points", "KDTree([[0.0], [3.0]])", "KDTree([[0.0], [4.0]])", "v.query([9.0])[0]",
         "from scipy.spatial import KDTree", layout=True, needs=("scipy",)),
    Edit("rotation", "Rotation.from_euler('z', 0.3)", "Rotation.from_euler('z', 0.4)", "v.magnitude()",
         "from scipy.spatial.transform import Rotation", layout=True, needs=("scipy",)),
    Edit("frozen distribution", "stats.norm(3)", "stats.norm(4)", "v.mean()", "from scipy import stats", needs=("scipy",
         )),
    Edit("image", "Image.new('L', (2, 2), 3)", "Image.new('L', (2, 2), 4)", "v.getpixel((0, 0))",
         "from PIL import Image",
         change="v.putpixel((0, 0), 4)", needs=("PIL",)),
    Edit("mode of an image", "Image.new('L', (2, 2), 3)", "Image.new('I', (2, 2), 3)", "len(v.tobytes())",
         "from PIL import Image", needs=("PIL",)),
    Edit("palette of an image", "palette(3)", "palette(4)", "v.convert('RGB').getpixel((0, 0))[0]",
         "from PIL import Image\n\ndef palette(n):\n    found = Image.new('P', (1, 1))\n"
         "    found.putpalette([n, 0, 0] * 256)\n    return found\n", needs=("PIL",)),
    Edit("Arrow table", "pa.table({'a': [1, 3]})", "pa.table({'a': [1, 4]})", "v['a'][1].as_py()",
         "import pyarrow as pa",
         needs=("pyarrow",)),
    Edit("Arrow slice", "pa.array([1, 3, 4])[:2]", "pa.array([1, 3, 4])[1:]", "v[0].as_py()", "import pyarrow as pa",
         needs=("pyarrow",)),
    Edit("Arrow schema metadata", "pa.schema([('a', 'i4')], {'n': '3'})", "pa.schema([('a', 'i4')], {'n': '4'})",
         "int(v.metadata[b'n'])", "import pyarrow as pa", needs=("pyarrow",)),
    Edit("JAX array", "jnp.array([1.0, 3.0])", "jnp.array([1.0, 4.0])", "v[1]", "import jax.numpy as jnp",
         needs=("jax",), slow=True),
]  # fmt: skip
