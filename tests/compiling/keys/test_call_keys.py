"""Keys of calls: equal where the same may be compiled for, whatever its size. What cannot be told has none."""

import enum
import functools
import os
import subprocess
import sys
from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.compiling.environments import HERE, elsewhere
from tests.slow import thinned
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel

from warmstore.compiling.environment import Environment
from warmstore.compiling.keys.call_keys import details_of_call, key_of_call, program_of_call
from warmstore.compiling.keys.graph_keys import GraphKey
from warmstore.compiling.keys.identified import Identified, IdentifiedArguments
from warmstore.errors import NoFingerprint

X = torch.zeros(3, 4)


class Net(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.linear = nn.Linear(4, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x).relu()


class Held(nn.Module):
    """A model with a module of the user's in it."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)


@dataclass
class Config:
    scale: float = 2.0

    def scaled(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale


class Mode(enum.IntEnum):
    A = 1
    B = 2


class Subclass(torch.Tensor):
    """A class of tensors that the program tells Dynamo to trace."""


Pair = namedtuple("Pair", "a b")


def function(source: str, **scope: object) -> Callable[..., Any]:
    space: dict[str, Any] = {"torch": torch, "__name__": "program", **scope}
    exec(source, space)
    return space["f"]


def whole_key(
    called: Any, *args: Any, options: dict[str, Any] | None = None, ignore: tuple[str, ...] = (), **kwargs: Any
) -> tuple[GraphKey, dict[str, str]]:
    args = args or (X,)
    version = options.pop("version", None) if options else None
    parts = (Identified(called, version, ignore).identity, IdentifiedArguments(args, kwargs, version, ignore).identity)
    key = key_of_call(parts, args, kwargs, options or {}, Environment())
    return key, dict(details_of_call(parts, key, options or {}).parts)


def key(called: Any, *args: Any, **more: Any) -> str:
    return whole_key(called, *args, **more)[0].digest


def test_sizes_values_and_names_of_locals_do_not_count() -> None:
    assert key(Net()) == key(Net(), torch.ones(7, 4))
    one = function("def f(x, scale=2):\n  'Doc.'\n  y = x + 1\n  return y * scale")
    other = function("# moved\ndef f(x, scale=2):\n  found = x + 1\n  return found * scale")
    assert key(one) == key(other)
    assert key(one, X, 3) == key(one, X, 4) != key(one, X, 3.0)


@pytest.mark.parametrize(
    "other",
    [
        "def f(x, scale=3):\n  return x * scale",
        "def f(x, scale=2):\n  return x + scale",
        "def f(x, *, scale=2):\n  return x * scale",
        "def f(y, scale=2):\n  return y * scale",
    ],
)
def test_every_real_change_of_a_function_has_another_key(other: str) -> None:
    assert key(function("def f(x, scale=2):\n  return x * scale")) != key(function(other))


HELPERS = """
SCALE = 2
def helper(x, by=3): return x * by * SCALE
def decorated(times):
  return lambda inner: lambda x: inner(x) * times
@decorated(5)
def f(x): return helper(x)
"""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("SCALE = 2", "SCALE = 2.0"),
        ("by=3", "by=4"),
        ("x * by", "x + by"),
        ("inner(x) * times", "inner(x) + times"),
        ("(5)", "(6)"),
        ("@decorated(5)\n", ""),
    ],
)
def test_what_a_function_calls_and_reads_counts(old: str, new: str) -> None:
    assert old in HELPERS
    assert key(function(HELPERS)) == key(function(HELPERS))
    assert key(function(HELPERS)) != key(function(HELPERS.replace(old, new)))


MODEL = """
def scaled(by):
    def decorate(function):
        def wrapper(self, x):
            return function(self, x) * by
        return wrapper
    return decorate

class Base(torch.nn.Module):
    def helper(self, x):
        return x

class Other:
    def helper(self, x):
        return -x

class Model(Base, Other):
    SCALE = [2.0, "a"]

    def __init__(self):
        super().__init__()
        self.times = (1, 2)

    @property
    def size(self):
        return 3

    @scaled(2)
    def forward(self, x, shift=1):
        return self.helper(x) + shift

f = Model()
"""


@pytest.mark.parametrize(
    ("old", "new"),
    thinned(
        4,
        [
            ("Base, Other", "Other, Base"),
            ("Base, Other", "Base"),
            ("2.0", "3.0"),
            ("@scaled(2)", "@scaled(3)"),
            ("    @scaled(2)\n", ""),
            ("shift=1", "shift=2"),
            ("    @property\n", ""),
            ("return 3", "return 4"),
            ("def size", "def helper(self, x): return 2 * x\n\n    def size"),
            ("(1, 2)", "[1, 2]"),
            ("(1, 2)", "(1, 3)"),
        ],
    ),
)
def test_what_decides_which_code_of_a_module_runs_counts(old: str, new: str) -> None:
    source = MODEL.replace("    @property\n", "") if new.startswith("def helper") else MODEL
    assert old in source
    assert key(function(source)) == key(function(source)) != key(function(source.replace(old, new)))


def test_swapped_parameters_are_another_key() -> None:
    one, other = function("def f(a, b): return a - b"), function("def f(b, a): return b - a")
    assert key(one, X, X) != key(other, X, X)
    assert key(one, a=X, b=X) != key(other, a=X, b=X)


def test_closures_count_and_what_cannot_be_told_has_no_key() -> None:
    def closed(value: object) -> Callable[[torch.Tensor], object]:
        return lambda x: (x, value)

    assert key(closed(2)) == key(closed(2)) != key(closed(3))
    given = (one for one in "ab")
    with pytest.raises(NoFingerprint, match=r"whether this changes: .*value.*: the items of a generator are unknown"):
        key(closed(given))
    place = next(iter(Identified(closed(given), None, ()).identity.unknown))
    assert key(closed(given), options={"version": "1"}) != key(closed(given), options={"version": "2"})
    assert key(closed(given), ignore=(place,)) == key(closed(iter("ab")), ignore=(place,))


@pytest.mark.parametrize(
    "x",
    [X.double(), X[0], X.to_sparse(), X.clone().requires_grad_(), X.to("meta")],
    ids=["dtype", "rank", "layout", "gradient", "device"],
)
def test_every_other_kind_of_input_has_another_key(x: torch.Tensor) -> None:
    assert key(Net()) != key(Net(), x)


def test_tensors_that_no_other_process_could_compare_have_no_key() -> None:
    nested = torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)], layout=torch.jagged)
    with pytest.raises(NoFingerprint, match="an argument is a NestedTensor; only plain tensors"):
        key(Net(), nested)


def test_arguments_that_are_objects_count_with_their_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    f = function("def f(x, y): return x")
    ordered, pair = {"b": X, "a": X}, Pair(X, X)
    arguments = [
        Config(), Config(3.0), Mode.A, Mode.B, 1, 1.0, True, "a", None, torch.sin, torch.cos, X.numpy(), Net(), Net(9),
        [X, X], (X, X), pair, ordered, {"a": X, "b": X}, {Mode.A: X}, {Mode.B: X},
        functools.partial(torch.add, alpha=2),
    ]  # fmt: skip
    found = [key(f, X, one) for one in arguments]
    assert len(set(found)) == len(found)
    assert found == [key(f, X, one) for one in arguments]
    pairs = [key(f, X, Pair(X, torch.ones(size, 4))) for size in (2, 5)]
    assert pairs[0] == pairs[1]  # containers are known by their elements
    monkeypatch.setattr(Config, "scaled", lambda self, x: x + self.scale)
    assert key(f, X, Config()) != found[0]
    with pytest.raises(NoFingerprint, match="arguments"):
        key(f, X, (one for one in ()))


def test_modules_count_by_class_code_mode_and_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    class Noisy(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(x) if self.training else x

    nets = [Held(Net()), Held(Net(9)), Held(nn.Linear(4, 8)), Held(Noisy()), Held(Noisy()).eval()]
    nets += [Held(Net()).double(), Held(Net()).requires_grad_(False)]
    found = [key(net) for net in nets]
    assert len(set(found)) == len(found)
    assert found[0] == key(Held(Net()))
    monkeypatch.setattr(Net, "forward", lambda self, x: self.linear(x))
    assert key(Held(Net())) not in found


def test_hooks_and_which_tensors_and_modules_are_the_same_count() -> None:
    def hook(module: nn.Module, args: object) -> None:
        """Does nothing."""

    nets = [nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)) for _ in range(7)]
    nets[1][0].register_forward_pre_hook(print)
    nets[2][1].weight = nets[2][0].weight
    nets[3][1] = nets[3][0]
    nets[4][0].register_forward_pre_hook(hook)
    nets[5][0].register_full_backward_hook(print)
    nets[6][1].bias = nn.Parameter(nets[6][0].weight.data[0])  # another tensor in the same memory
    found = [key(net) for net in nets]
    assert len(set(found)) == len(found)


def test_arguments_in_the_same_memory_count() -> None:
    f = function("def f(x, y): return x + y")
    memory = torch.zeros(8)
    found = [key(f, memory[:4], y) for y in (torch.zeros(4), memory[2:6])] + [key(f, X, X), key(f, X, X.clone())]
    assert len(set(found)) == len(found)
    assert key(f, X, X.to_sparse())


def test_options_and_modes_count() -> None:
    plain = key(Net())
    assert plain != key(Net(), options={"mode": "max-autotune"})
    with torch.no_grad():
        assert plain != key(Net())
    with torch.autocast("cpu"):
        assert plain != key(Net())
    with torch._inductor.config.patch(epilogue_fusion=False):
        assert plain != key(Net())


@pytest.mark.parametrize(
    ("config", "name", "value"),
    [
        (torch._inductor.config, "assert_indirect_indexing", False),
        (torch._inductor.config, "coordinate_descent_check_all_directions", True),
        (torch._inductor.config, "pre_grad_fusion_options", {"batch_linear": {}}),
        (torch._inductor.config, "cpp.cxx", (None, "clang++", "g++")),
        (torch._dynamo.config, "traceable_tensor_subclasses", {Subclass}),
    ],
)
def test_every_option_of_torchs_compilers_counts(config: Any, name: str, value: object) -> None:
    plain = key(Net())
    with config.patch({name: value}):
        assert plain != key(Net()) == key(Net())
    assert plain == key(Net())


def test_options_of_torchs_compilers_that_are_functions_count_by_what_they_do() -> None:
    def with_option(by: object) -> str:
        passes = [lambda snodes: (snodes, by)]
        with torch._inductor.config.patch(reorder_for_compute_comm_overlap_passes=passes):
            return key(Net())

    assert with_option(1) == with_option(1) != with_option(2)
    with pytest.raises(NoFingerprint, match=r"whether this changes: .*<by>: the items of a generator"):
        with_option(each for each in "ab")


def test_a_compiler_that_is_the_default_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The default is the value of CXX when torch was imported."""
    plain = key(Net())
    config: Any = torch._inductor.config
    monkeypatch.setattr(config._config["cpp.cxx"], "default", (None, "clang++"))
    with config.patch({"cpp.cxx": (None, "clang++")}):
        assert key(Net()) != plain


def test_folders_of_torchs_compilers_do_not_count() -> None:
    plain = key(Net())
    with torch._inductor.config.patch({"trace.debug_dir": "a"}), torch._dynamo.config.patch(debug_dir_root="b"):
        assert plain == key(Net())


def test_the_switches_of_attention_count() -> None:
    plain = key(Net())
    for kernels in ([SDPBackend.MATH], [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]):
        with sdpa_kernel(kernels):
            assert plain != key(Net())
    with sdpa_kernel([SDPBackend(each) for each in torch._C._get_sdp_priority_order()], set_priority=True):
        assert plain == key(Net())
    torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(True)
    try:
        assert plain != key(Net())
    finally:
        torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(False)


def test_the_kind_of_device_and_the_version_of_torch_count(monkeypatch: pytest.MonkeyPatch) -> None:
    def here(**changes: Any) -> GraphKey:
        return key_of_call([], (X,), {}, {}, elsewhere(**changes))

    assert here().device == "cuda"
    assert here(gpus=(), compute=()).device == "cpu"
    assert here().digest == here(gpus=("NVIDIA A100",)).digest != here(gpus=()).digest
    before = key_of_call([], (X,), {}, {}, HERE).digest
    monkeypatch.setattr(torch, "__version__", "2.0")
    assert key_of_call([], (X,), {}, {}, HERE).digest != before


def test_the_model_of_a_gpu_with_an_argument_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    def on(name: str, major: int, minor: int, *, device: str = "cuda:1") -> tuple[str, GraphKey]:
        properties = SimpleNamespace(name=name, major=major, minor=minor)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
        with FakeTensorMode():
            found = key_of_call([], (torch.empty(2, device=device),), {}, {}, elsewhere(gpus=(), compute=()))
        return found.digest, found

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    digests = [on(*gpu)[0] for gpu in (("A100", 8, 0), ("H100", 9, 0), ("A100", 8, 6), ("A100", 8, 0))]
    assert len(set(digests)) == 3
    assert digests[0] == digests[3]
    assert on("A100", 8, 0, device="cpu")[0] == on("H100", 9, 0, device="cpu")[0]
    parts = details_of_call([], on("A100", 8, 0)[1], {}).parts
    assert dict(parts)["input 0: device"] == "cuda:1 A100 8.0"


def test_options_that_are_code_count_by_what_they_do() -> None:
    options = [{"options": {"rule": function(f"def f(x): return x + {at}")}} for at in (1, 1, 2)]
    found = [key(Net(), options=one) for one in options]
    assert found[0] == found[1] != found[2]


def test_passes_of_the_programs_own_have_no_key() -> None:
    patched = torch._inductor.config.patch(post_grad_custom_pre_pass=print)
    with patched, pytest.raises(NoFingerprint, match="post_grad_custom_pre_pass"):
        key(Net())


def test_the_details_of_a_key_say_what_it_was_made_of() -> None:
    parts = whole_key(Net(), X, options={"mode": "default"})[1]
    assert parts["fact Net.linear.in_features"] == "4"
    assert parts["input 0: dtype"] == "torch.float32"
    assert parts["option mode"] == "'default'"
    assert parts["grad"] == "True"


def test_a_program_is_the_same_whatever_is_edited_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def program(model: nn.Module, x: torch.Tensor = X) -> str:
        return program_of_call(model.forward, (x,), {})

    before = program(Net())
    assert before == program(Net(9), torch.zeros(7, 4))
    assert before != program(Net(), X[0])
    assert before != program(Held(Net()))
    monkeypatch.setattr(Net.forward, "__code__", (lambda self, x: self.linear(x)).__code__)
    assert before == program(Net())


PROGRAM = """
import torch
from warmstore.compiling.keys.call_keys import key_of_call
from warmstore.compiling.environment import Environment
from warmstore.compiling.keys.identified import Identified, IdentifiedArguments

NAMES = {{"a", "b", "c"}}

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x):
        {local} = torch.softmax(self.linear(x), -1) * len(NAMES)
        return {{"out": {local}, "set": {local}.sum(dim=(0, 1), keepdim=True)}}

arguments = (torch.zeros(3, 4),)
parts = (Identified(Model(), None, ()).identity, IdentifiedArguments(arguments, {{}}, None, ()).identity)
print(key_of_call(parts, arguments, {{}}, {{}}, Environment()).digest)
"""


@pytest.mark.slow
def test_processes_agree_whatever_their_hash_seed_folder_and_names(tmp_path: Path) -> None:
    running = []
    for seed, (folder, local) in enumerate([("a", "y"), ("b/c", "scores")]):
        path = tmp_path / folder / "train.py"
        path.parent.mkdir(parents=True)
        path.write_text("\n" * seed + PROGRAM.format(local=local))
        environment = {**os.environ, "PYTHONHASHSEED": str(seed + 1), "HOME": str(tmp_path / folder)}
        running.append(subprocess.Popen([sys.executable, path], stdout=subprocess.PIPE, text=True, env=environment))
    first, second = (child.communicate()[0].strip() for child in running)
    assert len(first) == 32
    assert first == second
