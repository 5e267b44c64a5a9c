"""Edits of containers: an element, the type, the order, a factory, what is one object and what are two."""

from tests.identity.edits.edit import Edit

_GRAPH = """
    class Node:
        def __init__(self, n):
            self.n = n
            self.out = set()

    def graph(n, other):
        nodes = [Node(n), Node(5), Node(6)]
        nodes[0].out.add(nodes[other])
        nodes[1].out.add(nodes[0])
        nodes[2].out.update(nodes)
        return nodes
"""

EDITS = [
    Edit("tuple element", "(1, 3)", "(1, 4)", "v[1]"),
    Edit("list element", "[1, 3]", "[1, 4]", "v[1]", change="v[1] = 4"),
    Edit("length of a list", "[1, 3]", "[1, 3, 3]", "len(v)", change="v.append(3)"),
    Edit("nested list", "[[1], [2, [3]]]", "[[1], [2, [4]]]", "v[1][1][0]", change="v[1][1][0] = 4"),
    Edit("nesting of a list", "[[1, 2], [3]]", "[[1], [2, 3]]", "len(v[0])"),
    Edit("tuple for list", "[1, 3]", "(1, 3)", "type(v) is list"),
    Edit("empty tuple for empty list", "[]", "()", "type(v) is list"),
    Edit("list for range", "range(3)", "[0, 1, 2]", "type(v) is list"),
    Edit("dict value", "{'a': 3}", "{'a': 4}", "v['a']", change="v['a'] = 4"),
    Edit("dict key", "{'a': 3}", "{'b': 3}", "'a' in v", change="v['b'] = v.pop('a')"),
    Edit("type of a dict key", "{1: 3}", "{'1': 3}", "1 in v"),
    Edit("dict order", "{'a': 3, 'b': 4}", "{'b': 4, 'a': 3}", "list(v.values())[0]", change="v['a'] = v.pop('a')"),
    Edit("dict value of a key that is NaN", "{math.nan: 3, float('nan'): 5}", "{math.nan: 4, float('nan'): 5}",
         "v[math.nan]", change="v[math.nan] = 4"),
    Edit("dict of tuples", "{('a', 1): 3}", "{('a', 2): 3}", "('a', 1) in v"),
    Edit("OrderedDict for dict", "{'a': 3}", "collections.OrderedDict(a=3)", "type(v) is dict"),
    Edit("OrderedDict order", "collections.OrderedDict(a=3, b=4)", "collections.OrderedDict(b=4, a=3)",
         "list(v.values())[0]", change="v.move_to_end('a')"),
    Edit("order of a subclass of OrderedDict", "C(a=3, b=4)", "C(b=4, a=3)", "list(v.values())[0]",
         setup="class C(collections.OrderedDict):\n    pass\n", change="v.move_to_end('a')"),
    Edit("length limit of a subclass of deque", "C([1, 2], 2)", "C([1, 2], 3)", "v.maxlen",
         setup="class C(collections.deque):\n    pass\n"),
    Edit("attribute with an odd name", "many('a=1, b')", "many('a', 'b')", "len(vars(v[0]))", setup="""
             class C:
                 pass

             def many(*names):
                 found = C()
                 for n, name in enumerate(names, 3 - len(names)):
                     setattr(found, name, n)
                 return [found] * 80
         """),
    Edit("set element", "{1, 'a', 3}", "{1, 'a', 4}", "3 in v", change="v.discard(3)"),
    Edit("frozenset for set", "{1, 3}", "frozenset({1, 3})", "type(v) is set"),
    Edit("set for list", "[1, 3]", "{1, 3}", "type(v) is set"),
    Edit("set of tuples", "{(1, 'a'), (2, 'b')}", "{(1, 'b'), (2, 'a')}", "(1, 'a') in v"),
    Edit("deque", "collections.deque([1, 3])", "collections.deque([1, 4])", "v[1]", change="v[1] = 4"),
    Edit("length limit of a deque", "collections.deque([1], 3)", "collections.deque([1], 4)", "v.maxlen"),
    Edit("Counter", "collections.Counter('aab')", "collections.Counter('abb')", "v['a']", change="v['a'] = 1"),
    Edit("Counter for dict", "{'a': 3}", "collections.Counter(a=3)", "v['a'] if type(v) is dict else v['b']"),
    Edit("factory of a defaultdict", "collections.defaultdict(int)", "collections.defaultdict(lambda: 4)",
         "copy.copy(v)['a']"),
    Edit("code of a defaultdict's factory", "collections.defaultdict(made)", None, "copy.copy(v)['a']",
         setup="def made():\n    return 3\n", setup_new="def made():\n    return 4\n"),
    Edit("ChainMap", "collections.ChainMap({'a': 3}, {'a': 4})", "collections.ChainMap({'a': 4}, {'a': 3})", "v['a']",
         change="v.maps[0]['a'] = 4"),
    Edit("UserDict", "collections.UserDict(a=3)", "collections.UserDict(a=4)", "v['a']", change="v['a'] = 4"),
    Edit("UserList", "collections.UserList([3])", "collections.UserList([4])", "v[0]", change="v[0] = 4"),
    Edit("mappingproxy", "types.MappingProxyType({'a': 3})", "types.MappingProxyType({'a': 4})", "v['a']"),
    Edit("order of a large dict", "made(70, 71)", "made(71, 70)", "list(v).index(70)", setup="""
             def made(*last):
                 return {n: open for n in (*range(70), *last)}
         """, change="v[70] = v.pop(70)"),
    Edit("SimpleNamespace", "types.SimpleNamespace(a=3)", "types.SimpleNamespace(a=4)", "v.a", change="v.a = 4"),
    Edit("argparse.Namespace", "argparse.Namespace(a=3)", "argparse.Namespace(a=4)", "v.a", change="v.a = 4"),
    Edit("order of a SimpleNamespace", "types.SimpleNamespace(a=3, b=4)", "types.SimpleNamespace(b=4, a=3)",
         "list(vars(v).values())[0]", change="v.a = vars(v).pop('a')"),
    Edit("order of a Namespace that is shown", "argparse.Namespace(a=3, b=4)", "argparse.Namespace(b=4, a=3)",
         "str(v).index('a=')", change="v.a = vars(v).pop('a')"),
    Edit("nested Namespace", "argparse.Namespace(a=argparse.Namespace(b=[3]))",
         "argparse.Namespace(a=argparse.Namespace(b=[4]))", "v.a.b[0]", change="v.a.b[0] = 4"),
    Edit("aliased elements", "[[1]] * 2", "[[1], [1]]", "v[0] is v[1]"),
    Edit("list that holds itself", "looped(3)", "looped(4)", "v[1][1][0]", change="v[0] = 4",
         setup="def looped(n):\n    found = [n]\n    found.append(found)\n    return found\n"),
    Edit("objects that know each other", "pair(3)", "pair(4)", "v.other.other.n", change="v.n = 4",
         setup="""
             class Node:
                 pass

             def pair(n):
                 one, two = Node(), Node()
                 one.n, two.n, one.other, two.other = n, 0, two, one
                 return one
         """),
    Edit("nodes with sets of neighbours", "graph(3, 1)", "graph(4, 1)", "v[0].n", change="v[0].n = 4", setup=_GRAPH),
    Edit("neighbour of a node", "graph(3, 1)", "graph(3, 2)", "v[1] in v[0].out", setup=_GRAPH,
         change="v[0].out = {v[2]}"),
    Edit("dict keys", "{'a': 3}.keys()", "{'b': 3}.keys()", "'a' in v"),
    Edit("dict items", "{'a': 3}.items()", "{'a': 4}.items()", "dict(v)['a']"),
    Edit("deeply nested list", "nested(2000, 3)", "nested(2000, 4)", "innermost(v)",
         setup="""
             def nested(depth, value):
                 for _ in range(depth):
                     value = [value]
                 return value

             def innermost(value):
                 while isinstance(value, list):
                     value = value[0]
                 return value
         """),
    Edit("one of a thousand", "list(range(1000))", "[*range(998), 998, 1000]", "v[999]", change="v[999] = 1000"),
    Edit("items of a progress bar", "bar([1, 3])", "bar([1, 4])", "sum(v)", change="v.iterable = [1, 4]",
         setup="""
             import io
             import tqdm

             def bar(items):
                 return tqdm.tqdm(items, file=io.StringIO())
         """, needs=("tqdm",)),
    Edit("classes of many objects", "[A(3), B(3)] * 40", "[B(3), A(3)] * 40", "v[0].f()",
         setup="""
             class A:
                 def __init__(self, n):
                     self.n = n

                 def f(self):
                     return self.n

             class B(A):
                 def f(self):
                     return -self.n
         """),
    Edit("dynamic module", "made(3)", "made(4)", "v.N", change="v.N = 4",
         setup="""
             def made(n):
                 module = types.ModuleType("made_up")
                 module.N = n
                 return module
         """),
]  # fmt: skip
