"""Keys are equal for what compiles to the same, whatever it is called and wherever it runs, and for nothing else."""

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from tests.compiling.environments import HERE, elsewhere
from torch import fx, nn

from warmstore.compiling.keys import DeviceClass, Key, Versions
from warmstore.errors import NoKey

CPU = DeviceClass("cpu")
SCALE = 2.0


class Net(nn.Module):
    """A stand-in that the tests change in one way each."""

    def __init__(self, width: int = 8, bias: bool = True, rate: float = 0.5, eps: float = 1e-5) -> None:
        super().__init__()
        self.first = nn.Linear(4, width, bias=bias)
        self.norm = nn.BatchNorm1d(width, eps=eps)
        self.drop = nn.Dropout(rate)
        self.register_buffer("shift", torch.arange(float(width)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(self.first(x))
        return self.drop(self.norm(hidden) + self.shift).view(-1, 2)


class Renamed(nn.Module):
    """The same as `Net` under other names, and with comments."""

    def __init__(self) -> None:
        super().__init__()
        self.renamed_linear = nn.Linear(4, 8)
        self.inner = nn.Sequential(nn.BatchNorm1d(8), nn.Dropout(0.5))
        self.register_buffer("offset", torch.arange(8.0))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        projected = self.renamed_linear(images)
        activated = torch.relu(projected)
        # a comment
        shifted = self.inner[0](activated) + self.offset
        return self.inner[1](shifted).view(-1, 2)


def key(module: nn.Module, *inputs: Any, **options: Any) -> str:
    return Key.of(fx.symbolic_trace(module), inputs or (torch.zeros(3, 4),), device=CPU, **options).digest


def key_of(function: Callable[..., Any], *inputs: Any) -> str:
    return Key.of(fx.symbolic_trace(function), inputs or (torch.zeros(3, 4),), device=CPU).digest


def dynamo(module: Callable[..., Any], *inputs: Any, dynamic: bool | None = None) -> Key:
    """The key of what Dynamo makes of a module."""
    found: list[Key] = []

    def backend(graph: fx.GraphModule, examples: list[Any]) -> fx.GraphModule:
        found.append(Key.of(graph, device=CPU))
        assert found[0].digest == Key.of(graph, examples, device=CPU).digest
        return graph

    torch._dynamo.reset()
    torch.compile(module, backend=backend, dynamic=dynamic)(*inputs)
    return found[0]


def test_names_paths_and_values_of_parameters_do_not_matter() -> None:
    assert key(Net()) == key(Net()) == key(Renamed())
    assert dynamo(Net(), torch.zeros(3, 4)).digest == dynamo(Renamed(), torch.ones(3, 4)).digest


def wrapped(x: torch.Tensor) -> torch.Tensor:
    return x * SCALE


def with_function(function: Callable[..., Any]) -> fx.GraphModule:
    graph = fx.Graph()
    graph.output(graph.call_function(function, (graph.placeholder("x"),)))
    return fx.GraphModule(nn.Module(), graph)


REAL = {
    "width": lambda: key(Net(width=16)),
    "bias": lambda: key(Net(bias=False)),
    "dropout": lambda: key(Net(rate=0.4)),
    "eps": lambda: key(Net(eps=1e-4)),
    "evaluation": lambda: key(Net().eval()),
    "dtype of the parameters": lambda: key(Net().to(torch.bfloat16)),
    "frozen parameters": lambda: key(Net().requires_grad_(False)),
    "batch": lambda: key(Net(), torch.zeros(5, 4)),
    "dtype of the input": lambda: key(Net(), torch.zeros(3, 4, dtype=torch.float16)),
    "strides": lambda: key(Net(), torch.zeros(4, 3).T),
    "gradient of the input": lambda: key(Net(), torch.zeros(3, 4, requires_grad=True)),
    "layout": lambda: key(Net(), torch.zeros(3, 4).to_sparse()),
    "device": lambda: key(Net(), torch.zeros(3, 4, device="meta")),
    "a second input": lambda: key(Net(), torch.zeros(3, 4), torch.zeros(3, 4)),
    "settings": lambda: key(Net(), settings={"mode": "max-autotune"}),
    "versions": lambda: key(Net(), versions=Versions(torch="2.13")),
    "device class": lambda: Key.of(fx.symbolic_trace(Net()), [torch.zeros(3, 4)], device=DeviceClass("cuda")).digest,
}


@pytest.mark.parametrize("change", REAL)
def test_every_real_change_has_another_key(change: str) -> None:
    digests = {name: make() for name, make in REAL.items()} | {"none": key(Net())}
    assert [name for name, digest in digests.items() if digest == digests[change]] == [change]


CODES: list[Callable[..., Any]] = [
    lambda x: x + 1,
    lambda x: x + 1.0,
    lambda x: 1 + x,
    lambda x: x + True,
    lambda x: x - 1,
    lambda x: torch.add(x, 1),
    lambda x: x.add(1),
    lambda x: torch.add(x, 1, alpha=2),
    lambda x: x[0],
    lambda x: x[:1],
    lambda x: x[None, :1],
    lambda x: x[..., :1],
    lambda x: x[(0,)],
    lambda x: x[[0]],
    lambda x: x.sum(0),
    lambda x: x.sum((0,)),
    lambda x: x.sum([0]),
    lambda x: x.to(torch.float16),
    lambda x: x.to(torch.float64),
    lambda x: x.to("cpu"),
    lambda x: x.to(memory_format=torch.channels_last),
    lambda x: x.view(-1),
    lambda x: x.reshape(-1),
    lambda x: torch.relu(x),
    lambda x: F.relu(x),
    lambda x: torch.sigmoid(torch.relu(x)),
    lambda x: torch.relu(torch.sigmoid(x)),
    lambda x: (x, x + 1),
    lambda x: (x + 1, x),
    lambda x: [x + 1, x],
    lambda x: {"a": x + 1},
    lambda x: {"b": x + 1},
    lambda x: x + float("inf"),
    lambda x: x + float("nan"),
    lambda x: x * x,
    lambda x: (x * 2) * x,
    lambda x: torch.full((2,), 1.0, dtype=torch.float32) + x,
    lambda x: torch.ops.aten.add.Tensor(x, 1),
    lambda x: torch.ops.aten.sub.Tensor(x, 1),
]


def test_no_two_of_many_graphs_share_a_key() -> None:
    digests = [key_of(code) for code in CODES]
    assert len(set(digests)) == len(digests)


def test_two_inputs_are_told_apart() -> None:
    x, y = torch.zeros(3, 4), torch.zeros(3, 4)
    assert key_of(lambda a, b: a - b, x, y) == key_of(lambda left, right: left - right, x, y)
    assert key_of(lambda a, b: a - b, x, y) != key_of(lambda a, b: b - a, x, y)


def test_constant_tensors_count_by_their_values() -> None:
    def adding(constant: torch.Tensor) -> str:
        return key_of(lambda x: x + constant)

    assert adding(torch.tensor([1.0, 2.0, 3.0, 4.0])) == adding(torch.tensor([1.0, 2.0, 3.0, 4.0]))
    assert adding(torch.tensor([1.0, 2.0, 3.0, 4.0])) != adding(torch.tensor([1.0, 2.0, 3.0, 5.0]))


def test_functions_of_the_user_count_by_what_they_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def digest(function: Callable[..., Any]) -> str:
        return Key.of(with_function(function), [torch.zeros(3)], device=CPU).digest

    def bound(factor: float) -> Callable[..., Any]:
        return lambda x: x * factor

    before = digest(wrapped)
    monkeypatch.setitem(globals(), "wrapped", wrapped)  # to have it back
    exec("# Another line.\ndef wrapped(x):\n    'Doc.'\n    return x * SCALE", globals())
    assert digest(wrapped) == before
    assert digest(bound(2.0)) != digest(bound(3.0))
    assert digest(lambda x: torch.ones(1, device="cpu")) != digest(lambda x: torch.ones(1, device="meta"))
    monkeypatch.setitem(globals(), "SCALE", 3.0)
    assert digest(wrapped) != before


def test_modules_of_the_user_count_by_their_code_and_private_state() -> None:
    class Leaf(nn.Module):
        def __init__(self, scale: float) -> None:
            super().__init__()
            self._scale = scale

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self._scale

    class Other(Leaf):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self._scale

    def digest(module: nn.Module) -> str:
        root = nn.Module()
        root.leaf = module
        graph = fx.Graph()
        graph.output(graph.call_module("leaf", (graph.placeholder("x"),)))
        return Key.of(fx.GraphModule(root, graph), [torch.zeros(3)], device=CPU).digest

    hooked = Leaf(1.0)
    hooked.register_forward_hook(lambda module, inputs, output: output * 2)
    kinds = [Leaf(1.0), Leaf(2.0), Other(1.0), nn.ReLU(), nn.ReLU(inplace=True), hooked, nn.Sequential(nn.ReLU())]
    assert len({digest(one) for one in kinds}) == len(kinds)
    assert digest(Leaf(1.0)) == digest(Leaf(1.0))


def test_statistics_of_a_layer_that_change_with_every_step_do_not_count() -> None:
    moved = Net()
    moved(torch.randn(3, 4))
    assert key(moved) == key(Net())


@pytest.mark.parametrize(
    "function", [partial(torch.add, other=1), torch.zeros(3).add, object().__eq__], ids=["partial", "bound", "object"]
)
def test_what_has_no_name_has_no_key(function: Any) -> None:
    module = with_function(torch.relu)
    next(node for node in module.graph.nodes if node.op == "call_function").target = function
    with pytest.raises(NoKey, match="which has no name that is the same in every process"):
        Key.of(module, [torch.zeros(3)], device=CPU)


def test_inputs_of_which_nothing_is_known() -> None:
    with pytest.raises(NoKey, match="nothing is known of the input x; pass `inputs`"):
        Key.of(fx.symbolic_trace(lambda x: x), device=CPU)
    nested = torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)], layout=torch.jagged)
    with pytest.raises(NoKey, match="of a NestedTensor it is not known"):
        key_of(lambda x: x, nested)


def test_dynamic_dimensions_are_numbered_and_their_sizes_do_not_count() -> None:
    def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, y]).view(-1)

    small = dynamo(add, torch.zeros(3, 4), torch.zeros(5, 4), dynamic=True)
    large = dynamo(add, torch.zeros(7, 6), torch.zeros(9, 6), dynamic=True)
    static = dynamo(add, torch.zeros(3, 4), torch.zeros(5, 4), dynamic=False)
    assert small.digest == large.digest != static.digest
    shapes = [one.shape for one in small.inputs if not isinstance(one, str)]
    assert [one[1] for one in shapes] == [shapes[0][1]] * 2  # cat made them equal
    assert len({one[0] for one in shapes} | {shapes[0][1]}) == 3
    assert all(isinstance(size, int) and size < 0 for shape in shapes for size in shape)
    equal = dynamo(lambda x, y: x + y, torch.zeros(3, 4), torch.zeros(3, 4), dynamic=True)
    assert {one.shape for one in equal.inputs if not isinstance(one, str)} == {(-1, -2)} or len(equal.inputs) > 2


def test_modes_count() -> None:
    before = key(Net())
    with torch.no_grad():
        assert key(Net()) != before
    with torch.autocast("cpu", torch.bfloat16):
        mixed = key(Net())
        assert mixed != before
    with torch.autocast("cpu", torch.float16):
        assert key(Net()) not in (mixed, before)
    assert key(Net()) == before


def test_device_classes() -> None:
    old = elsewhere(gpus=("NVIDIA A100",), compute=((8, 0),))
    assert DeviceClass.of(HERE) == DeviceClass.of(old) == DeviceClass("cuda")
    assert DeviceClass.of(HERE, "compute") == DeviceClass("cuda 9.0") != DeviceClass.of(old, "compute")
    assert DeviceClass.of(HERE, "model") == DeviceClass("cuda NVIDIA H200")
    assert DeviceClass.of(elsewhere(gpus=(), compute=()), "model") == DeviceClass("cpu")
    with pytest.raises(ValueError, match="only='gpu' is not known"):
        DeviceClass.of(HERE, "gpu")


PROGRAM = """
import sys
import torch
from torch import fx, nn
from warmstore.compiling.keys import DeviceClass, Key

class {name}(nn.Module):
    def __init__(self):
        super().__init__()
        self.{layer} = nn.Linear(4, 4)
    def forward(self, {argument}):
        {local} = torch.softmax(self.{layer}({argument}), -1)
        return {{"out": {local}, "set": {local}.sum(dim=(0, 1), keepdim=True)}}

def scaled(x):
    return x * len({{"a", "b", "c"}})

fx.wrap("scaled")
{names} = [Key.of(fx.symbolic_trace({name}()), [torch.zeros(3, 4)], device=DeviceClass("cpu")).digest]
graph = fx.Graph()
graph.output(graph.call_function(scaled, (graph.placeholder("x"),)))
print(*{names}, Key.of(fx.GraphModule(nn.Module(), graph), [torch.zeros(3)], device=DeviceClass("cpu")).digest)
"""


def test_processes_agree_whatever_their_hash_seed_folder_and_names(tmp_path: Any) -> None:
    variants = [("Model", "fc", "x", "y", "keys"), ("Net", "projection", "images", "scores", "found")]
    running = []
    for seed, (names, folder) in enumerate(zip(variants, ("a", "b/c"), strict=True)):
        path = tmp_path / folder / "train.py"
        path.parent.mkdir(parents=True)
        program = PROGRAM.format(**dict(zip(("name", "layer", "argument", "local", "names"), names, strict=True)))
        path.write_text(textwrap.dedent("\n" * seed + program))
        environment = {**os.environ, "PYTHONHASHSEED": str(seed + 1), "HOME": str(tmp_path / folder)}
        running.append(subprocess.Popen([sys.executable, path], stdout=subprocess.PIPE, text=True, env=environment))
    said = [child.communicate()[0].split() for child in running]
    assert len(said[0]) == 2
    assert said[0] == said[1]
