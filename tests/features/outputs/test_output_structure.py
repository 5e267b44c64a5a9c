"""F3: what a module returns comes back as it was, from a hit as from a miss."""

from collections import OrderedDict, namedtuple
from dataclasses import dataclass, field, is_dataclass
from typing import Any

import numpy as np
import pytest
import torch
from tests.slow import thinned

import warmstore as ws
from warmstore.features.outputs.output_structure import flatten, paths_of, unflatten

Pair = namedtuple("Pair", ["left", "right"])


@dataclass
class Boxes:
    corners: torch.Tensor
    name: str


class Scaled(namedtuple("Scaled", ["mean", "std"])):
    """Its constructor doubles what it is given."""

    def __new__(cls, mean: torch.Tensor, std: torch.Tensor) -> Any:
        return super().__new__(cls, mean, 2 * std)


@dataclass
class Halved:
    """Its constructor halves what it is given, and computes more."""

    logits: torch.Tensor
    norm: torch.Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.logits = self.logits / 2
        self.norm = self.logits.norm(dim=1)


def bits_of(tensor: torch.Tensor) -> Any:
    tensor = tensor.resolve_conj().resolve_neg().contiguous()
    return tensor.reshape(-1).view(torch.uint8).numpy() if tensor.numel() else np.zeros(0)


def same(a: Any, b: Any) -> None:
    """Assert that two outputs are the same in type, structure and every bit."""
    assert type(a) is type(b)
    if isinstance(a, torch.Tensor):
        assert a.dtype == b.dtype
        assert a.shape == b.shape
        assert a.device == b.device
        assert not a.requires_grad
        assert not b.requires_grad
        assert bits_of(a).tobytes() == bits_of(b).tobytes()
    elif isinstance(a, np.ndarray):
        np.testing.assert_array_equal(a, b, strict=True)
    elif isinstance(a, dict):
        assert list(a) == list(b)
        for key in a:
            same(a[key], b[key])
    elif isinstance(a, list | tuple):
        assert len(a) == len(b)
        for one, other in zip(a, b, strict=True):
            same(one, other)
    elif is_dataclass(a):
        same(vars(a), vars(b))
    else:
        assert a == b


OUTPUTS = {
    "tensor": lambda x: x * 2,
    "one number a sample": lambda x: x.sum(1),
    "no numbers": lambda x: {"nothing": x[:, :0], "x": x},
    "ndarray": lambda x: x.numpy() * 2,
    "dict": lambda x: {"a": x, 7: x.sum(1), "with::colons/and%3A": x.long()},
    "ordered dict": lambda x: OrderedDict(b=x, a=-x),
    "tuple": lambda x: (x, x.sum(1).int()),
    "layers": lambda x: [x, x * 2, x[:, 0]],
    "namedtuple": lambda x: Pair(x, x > 0),
    "dataclass": lambda x: Boxes(x, "boxes"),
    "dataclass whose constructor computes": Halved,
    "namedtuple whose constructor computes": lambda x: Scaled(x, x),
    "return type of torch": lambda x: torch.max(x, 1),
    "nested": lambda x: {"a": [(x, {"b": Pair(x.half(), [x])})], "c": (None,)},
    "constants": lambda x: (x, None, "text", 3, 2.5, True, {"k": 1}),
    "items": lambda x: [row[: 1 + int(row[0])] for row in x],
    "items that are dicts": lambda x: [{"a": row, "b": (row[0], "name"), "c": [1, {"d": None}]} for row in x],
    "items that are values": lambda x: [f"sample {row[0]:g}" for row in x],
    "items in a dict": lambda x: {"boxes": [row[: int(row[0])].reshape(1, -1) for row in x], "x": x},
    "no batch layout": lambda x: x.t().contiguous().t(),
    "expanded": lambda x: x[:, :1].expand(-1, 5),
    "conjugate": lambda x: torch.complex(x, -x).conj(),
}


@pytest.mark.parametrize("name", thinned(3, OUTPUTS))
def test_hit_equals_miss(cached, name):
    function = OUTPUTS[name]
    x = torch.arange(20, dtype=torch.float32).reshape(5, 4) % 6
    lists = "per_sample" if name.startswith("items") else "structure"
    module = cached(function, lists=lists)
    expected = function(x)
    miss = module(x, cache_ids=range(5))
    same(miss, expected)
    same(module(x, cache_ids=range(5)), expected)  # waiting
    module.cache.flush()
    same(module(x, cache_ids=range(5)), expected)  # stored
    assert module.rows == [5]
    module.cache.close()

    again = cached(function, lists=lists)
    same(again(x, cache_ids=range(5)), expected)
    assert again.rows == []
    longer = torch.cat([torch.full((2, 4), 3.0), x])
    same(again(longer, cache_ids=[8, 9, 0, 1, 2, 3, 4]), function(longer))  # two misses, five hits
    assert again.rows == [2]
    again.cache.close()


def test_attributes_beside_the_fields_are_refused(cached):
    def function(x):
        output = Boxes(x, "boxes")
        output.extra = x * 2
        return output

    with pytest.raises(ws.UnsupportedType, match=r"output is a Boxes with other state .*: \['extra'\]"):
        cached(function)(torch.ones(3, 2), cache_ids=range(3))


def test_hits_are_contiguous_and_writable(cached):
    x = torch.rand(4, 6)
    module = cached(lambda x: {"x": x.t().contiguous().t(), "e": x[:, :1].expand(-1, 3), "r": [r[:2] for r in x]})
    module(x, cache_ids=range(4))
    for _ in range(2):
        hit = module(x, cache_ids=range(4))
        module.cache.flush()
        for tensor in (hit["x"], hit["e"], *hit["r"]):
            assert tensor.is_contiguous()
            tensor.zero_()
    torch.testing.assert_close(module(x, cache_ids=range(4))["x"], x)


NAMES = [
    "bool",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "int8",
    "int16",
    "int32",
    "int64",
    "float16",
    "float32",
    "float64",
    "bfloat16",
    "complex64",
    "complex128",
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
]
DTYPES = [getattr(torch, name) for name in NAMES if hasattr(torch, name)]


@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_comes_back_bit_for_bit(tmp_path, dtype, ragged):
    size = torch.empty(0, dtype=dtype).element_size()
    high = 2 if dtype == torch.bool else 256
    # Every pattern of bits, the payloads of NaNs among them.
    bits = torch.from_numpy(np.random.default_rng(0).integers(0, high, (64, 16 * size), np.uint8))
    values = bits.view(dtype)
    given = [row[: 1 + at % 16].clone() for at, row in enumerate(values)] if ragged else values
    with ws.FeatureCache(tmp_path, "id") as cache:
        cache.put_batch(range(64), given)
        same(cache.get_batch(range(64))[0], given)
        cache.flush()
        same(cache.get_batch(range(64))[0], given)
    with ws.FeatureCache(tmp_path, "id") as cache:
        same(cache.get_batch(range(64))[0], given)


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (torch.rand(2, 2).to_sparse(), ws.UnsupportedType),
        ([torch.rand(2).to_sparse()] * 2, ws.UnsupportedType),
        (torch.ones(2, device="meta"), ws.UnsupportedType),
        ([torch.ones(2, device="meta")] * 2, ws.UnsupportedType),
        (np.ma.MaskedArray([1.0, 2.0], [False, True]), ws.SchemaMismatch),
        ([np.ma.MaskedArray([1.0, 2.0], [False, True]), np.ma.MaskedArray([1.0], [False])], ws.SchemaMismatch),
        ([{"name": "file\udce9.jpg"}, {"name": "a"}], ws.UnsupportedType),
        ([{"names": [{"\udce9": 1}]}] * 2, ws.UnsupportedType),
        ((torch.ones(2), "file\udce9.jpg"), ws.UnsupportedType),
        ({"\udce9": torch.ones(2)}, ws.UnsupportedType),
        (np.array([object(), object()]), ws.UnsupportedType),
        (np.array(["a", "b"]), ws.UnsupportedType),
        (np.ones(2, ">f4"), ws.UnsupportedType),
        ({"x": torch.ones(2), ("a", 1): torch.ones(2)}, ws.UnsupportedType),
        ({"x": torch.ones(2), True: torch.ones(2)}, ws.UnsupportedType),
        ({"a": {"b": torch.ones(2)}, "a/b": torch.zeros(2)}, ws.UnsupportedType),
        ({1: torch.ones(2), "1": torch.zeros(2)}, ws.UnsupportedType),
        ((torch.ones(2), {1, 2}), ws.UnsupportedType),
        ((torch.ones(2), np.float64(1)), ws.UnsupportedType),
        ([[(1, 2)], [(1, 2)]], ws.UnsupportedType),
        ([{"a": [{1: 2}]}] * 2, ws.UnsupportedType),
        ([[torch.ones(2)]] * 2, ws.UnsupportedType),
        ([np.float64(1), np.float64(2)], ws.UnsupportedType),
        ([torch.ones(2), torch.ones(2).half()], ws.SchemaMismatch),
        (torch.ones(3, 2), ws.SchemaMismatch),
        (torch.tensor(1.0), ws.SchemaMismatch),
        ({"x": torch.ones(2), "mean": torch.tensor(1.0)}, ws.SchemaMismatch),
        ({"a": None}, ws.SchemaMismatch),
        (3, ws.SchemaMismatch),
    ],
)
def test_what_would_not_come_back_is_refused_at_once(tmp_path, value, error):
    cache = ws.FeatureCache(tmp_path, "id", lists="per_sample")
    with pytest.raises(error):
        cache.put_batch([1, 2], value)
    cache.put_batch([1, 2], {"fine": torch.ones(2)})
    cache.close()
    assert len(ws.FeatureCache(tmp_path, "id")) == 2


@pytest.mark.filterwarnings("ignore:The PyTorch API of:UserWarning")
def test_tensors_without_a_value_at_every_position_are_refused(cached):
    outputs = [
        lambda x: torch.masked.masked_tensor(x, x > 0),
        lambda x: (x, torch.masked.masked_tensor(x, x > 0)),
        lambda x: torch.nested.nested_tensor(list(x), layout=torch.strided),
        lambda x: {"x": x, "y": torch.nested.nested_tensor(list(x), layout=torch.jagged)},
        lambda x: x.to("meta"),
    ]
    for function in outputs:
        with pytest.raises(ws.UnsupportedType, match="only dense ones can be cached"):
            cached(function)(torch.ones(2, 3), cache_ids=range(2))


@pytest.mark.parametrize(
    ("value", "advice"),
    [
        (lambda: torch.eye(2).to_sparse(), r"torch\.sparse_coo .* Return its to_dense\(\)"),
        (lambda: torch.quantize_per_tensor(torch.eye(2), 0.1, 0, torch.quint8), r"quantised .* dequantize\(\)"),
        (lambda: {"x": np.array(["a", "b"])}, r"^x is an array of <U1.* values\.tolist\(\)"),
        (lambda: np.array([1, None], object), r"an array of object; .* values\.tolist\(\)"),
        (lambda: np.zeros(2, [("a", "f4")]), r"a dict of their fields"),
        (lambda: np.zeros(2, ">f4"), r"newbyteorder"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*quantiz:UserWarning", "ignore:.*quantiz:DeprecationWarning")
def test_what_cannot_be_cached_is_named_with_what_to_return(tmp_path, value, advice):
    with ws.FeatureCache(tmp_path, "id") as cache, pytest.raises(ws.UnsupportedType, match=advice):
        cache.put_batch([1, 2], value())


def test_masked_arrays_of_which_nothing_is_masked(tmp_path):
    with ws.FeatureCache(tmp_path, "id", lists="per_sample") as cache:
        cache.put_batch([1, 2], [np.ma.MaskedArray([1.0]), np.ma.MaskedArray([1.0, 2.0], [False, False])])
        assert [value.tolist() for value in cache.get_batch([1, 2])[0]] == [[1.0], [1.0, 2.0]]


def test_local_dataclass_is_refused_before_it_is_stored(tmp_path):
    @dataclass
    class Local:
        x: torch.Tensor

    cache = ws.FeatureCache(tmp_path, "id")
    with pytest.raises(ws.UnsupportedType, match="top of a module"):
        cache.put_batch([1], Local(torch.ones(1)))
    assert len(cache) == 0


class TestAmbiguousLists:
    """A list output was once taken for per-sample items; now it must be clear what it is."""

    def test_as_many_layers_as_samples_raises(self, cached):
        module = cached(lambda x: [x, x])
        with pytest.raises(ws.AmbiguousBatch, match="lists="):
            module(torch.ones(2, 3), cache_ids=[1, 2])
        assert len(module.cache) == 0

    def test_first_batch_decides_for_later_ones(self, cached):
        module = cached(lambda x: [x, x + 1])
        module(torch.ones(3, 3), cache_ids=[1, 2, 3])
        layers = module(torch.zeros(2, 3), cache_ids=[4, 5])  # two layers for two samples
        assert len(layers) == 2
        same(layers, [torch.zeros(2, 3), torch.ones(2, 3)])
        same(module(torch.zeros(2, 3), cache_ids=[4, 5]), layers)

    def test_square_layers(self, cached):
        module = cached(lambda x: [x, -x], lists="structure")
        x = torch.rand(2, 2)
        for _ in range(2):
            same(module(x, cache_ids=["a", "b"]), [x, -x])

    def test_items_as_long_as_the_batch(self, cached):
        module = cached(lambda x: [row * 2 for row in x], lists="per_sample")
        x = torch.rand(3, 3)
        for _ in range(2):
            same(module(x, cache_ids=["a", "b", "c"]), [row * 2 for row in x])

    @pytest.mark.parametrize("items", [[], [torch.ones(2)], [torch.ones(2)] * 4])
    def test_too_few_or_many_items(self, tmp_path, items):
        cache = ws.FeatureCache(tmp_path, "id", lists="per_sample")
        cache.put_batch([1, 2], [torch.ones(2), torch.ones(3)])
        with pytest.raises(ws.SchemaMismatch):
            cache.put_batch([3, 4, 5], items)
        cache.flush()
        assert cache.get_batch([1, 2, 3])[1].tolist() == [2]


@pytest.mark.parametrize("name", OUTPUTS)
def test_unflatten_is_the_inverse_of_flatten(name):
    x = torch.arange(20, dtype=torch.float32).reshape(5, 4) % 6
    output = OUTPUTS[name](x)
    spec, leaves = flatten(output, 5, None, "per_sample" if name.startswith("items") else "structure")
    by_path = {leaf.path: leaf.values for leaf in leaves}
    assert list(paths_of(spec)) == list(by_path)
    same(unflatten(spec, by_path.__getitem__), output)
