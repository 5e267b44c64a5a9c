"""Keys that say what is compiled, not where it was written: equal on every machine, under every name.

A key is the digest of a graph's structure (operators, how they are connected, constants, attributes), what goes into
it, the class of device, the versions it needs and torch's global modes. Names of variables, parameters, placeholders
and modules, source lines, file paths and object identities are not part of it. What has no meaning that is the same
everywhere gets no key at all: never one that might be equal by chance.
"""

from __future__ import annotations

import enum
import json
import re
import types
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from blake3 import blake3
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeTensor

from warmstore.compiling.environment import Environment
from warmstore.errors import NoKey
from warmstore.identity.identity import identify, reasons

_SYMBOL = re.compile(r"\b[a-z]+\d+\b")
_PLAIN = (torch.dtype, torch.layout, torch.memory_format)
_MISSING = object()
_EVERY_MODULE = frozenset(vars(nn.Module()))
_TENSORS = (torch.Tensor, nn.Parameter, nn.Buffer, FakeTensor)
_GLOBAL_NAMES = ("torch", "_operator", "math", "builtins")


@dataclass(frozen=True)
class InputSpec:
    """What is known of one input when it is compiled for.

    `shape` and `strides` are in elements. A dynamic dimension is -1, -2 and so on: dimensions with the same number are
    equal in all inputs of the graph, and strides that depend on them are texts such as "-1*4".
    """

    shape: tuple[int | str, ...]
    strides: tuple[int | str, ...]
    dtype: str
    layout: str
    device: str
    requires_grad: bool


@dataclass(frozen=True)
class DeviceClass:
    """The devices that what is compiled is for. Build it with `of`; `name` is what a key has of it."""

    name: str

    @classmethod
    def of(cls, environment: Environment, only: str = "any") -> DeviceClass:
        """The class of this environment's devices.

        Args:
            environment: that of the process which compiles.
            only: "any" CUDA device, those of the same "compute" capability, or of the same "model". Without a GPU the
                class is that of all CPUs.

        Raises:
            ValueError: another word for `only`.
        """
        if only not in ("any", "compute", "model"):
            raise ValueError(f'only={only!r} is not known; take "any", "compute" or "model"')
        if not environment.gpus:
            return cls("cpu")
        if only == "compute":
            return cls("cuda " + ", ".join(sorted({f"{major}.{minor}" for major, minor in environment.compute})))
        return cls("cuda" if only == "any" else "cuda " + ", ".join(sorted(set(environment.gpus))))


@dataclass(frozen=True)
class Versions:
    """What must at least be there; None is "any". `compute` is a GPU's compute capability."""

    torch: str | None = None
    triton: str | None = None
    compute: tuple[int, int] | None = None


@dataclass(frozen=True)
class Key:
    """What a compiled artifact is of. `graph` is the digest of the structure, `modes` are torch's global settings."""

    graph: str
    inputs: tuple[InputSpec | str, ...]
    device: DeviceClass
    versions: Versions
    modes: tuple[str, ...]

    @cached_property
    def digest(self) -> str:
        """32 hexadecimal digits."""
        inputs = [one if isinstance(one, str) else vars(one) for one in self.inputs]
        return digest([self.graph, inputs, self.device.name, vars(self.versions), self.modes])

    @classmethod
    def of(
        cls,
        module: fx.GraphModule,
        inputs: Iterable[object] | None = None,
        *,
        device: DeviceClass,
        versions: Versions | None = None,
        settings: Mapping[str, object] | None = None,
    ) -> Key:
        """The key of a graph and its inputs.

        Args:
            module: what Dynamo or `torch.fx.symbolic_trace` made.
            inputs: tensors and numbers in the order of the placeholders. Those of which Dynamo left an example count
                by that: it knows which dimensions are dynamic.
            device: what it is compiled for.
            versions: what it needs.
            settings: options of the compiler, as JSON can say them.

        Raises:
            NoKey: the graph has a part that has no name by which another process would know it.
        """
        reader = Reader()
        specs = tuple(reader.spec(value) for value in _examples(module, inputs))
        graph = digest([reader.graph(module), dict(sorted((settings or {}).items()))])
        return cls(graph, specs, device, versions or Versions(), modes())


def modes() -> tuple[str, ...]:
    """Global settings of torch under which the same graph compiles to something else."""
    autocast = [
        f"{kind} {torch.get_autocast_dtype(kind)}" for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)
    ]
    return (
        f"grad {torch.is_grad_enabled()}",
        f"inference {torch.is_inference_mode_enabled()}",
        f"autocast {autocast}",
        f"deterministic {torch.are_deterministic_algorithms_enabled()}",
        f"dtype {torch.get_default_dtype()}",
        f"matmul {torch.get_float32_matmul_precision()}",
    )


class Reader:
    """Reads a graph into lists, texts and numbers. Symbols of sizes are numbered as they are met."""

    def __init__(self) -> None:
        self._symbols: dict[str, str] = {}
        self._open: list[int] = []

    def spec(self, value: object) -> InputSpec | str:
        """What is known of an input. Numbers are known by their value, for graphs are made for it."""
        if not isinstance(value, torch.Tensor):
            return json.dumps(self._value(value, {}))
        if type(value) not in _TENSORS or value.is_quantized:
            raise NoKey(f"of a {type(value).__qualname__} it is not known what an input like it has to have")
        strided = value.layout == torch.strided
        return InputSpec(
            shape=tuple(map(self._size, value.shape)),
            strides=tuple(map(self._size, value.stride())) if strided else (),
            dtype=str(value.dtype),
            layout=str(value.layout),
            device=str(value.device),
            requires_grad=value.requires_grad,
        )

    def graph(self, module: fx.GraphModule) -> list[object]:
        """Every node: what it does, to which earlier nodes and constants."""
        numbers: dict[fx.Node, int] = {}
        said: list[object] = []
        for node in module.graph.nodes:
            arguments = [self._value(node.args, numbers), self._value(node.kwargs, numbers)]
            numbers[node] = len(numbers)
            said.append([node.op, self._target(module, node), *arguments])
        return said

    def _target(self, module: fx.GraphModule, node: fx.Node) -> object:
        if node.op in ("placeholder", "output"):
            return None
        if node.op == "call_method":
            return node.target
        if node.op == "call_function":
            return self._function(node.target)
        found: Any = module
        for name in str(node.target).split("."):
            found = getattr(found, name)
        return self._attribute(found)

    def _attribute(self, found: object) -> object:
        if isinstance(found, fx.GraphModule):
            return ["graph", self.graph(found)]
        if isinstance(found, nn.Module):
            return self._module(found)
        if isinstance(found, torch.Tensor):
            spec = self.spec(found)
            assert isinstance(spec, InputSpec)
            if isinstance(found, nn.Parameter):
                return ["parameter", vars(spec)]
            return ["tensor", vars(spec), _content(found)]  # a constant of the graph, for all that can be told
        return self._value(found, {})

    def _module(self, module: nn.Module) -> list[object]:
        """A module that was not traced: its class, plain attributes, what its tensors are like, and what is in it."""
        if id(module) in self._open:
            raise NoKey(f"the module {type(module).__qualname__} contains itself")
        self._open.append(id(module))
        plain = {
            name: self._value(value, {})
            for name, value in sorted(vars(module).items())
            if name not in _EVERY_MODULE and not isinstance(value, torch.Tensor)
        }
        plain["training"] = module.training
        hooks = [
            self._function(hook)
            for name in ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
            for hook in getattr(module, name).values()
        ]
        tensors = [
            [kind, name, spec if isinstance(spec := self.spec(tensor), str) else vars(spec)]
            for kind, found in (("parameter", module._parameters), ("buffer", module._buffers))
            for name, tensor in found.items()
        ]
        children = [[name, self._attribute(child)] for name, child in module._modules.items() if child is not None]
        self._open.pop()
        return ["module", self._class(type(module)), plain, hooks, tensors, children]

    def _class(self, kind: type) -> object:
        if _is_global(kind.__module__):
            return f"{kind.__module__}.{kind.__qualname__}"
        return ["class", kind.__qualname__, self._identity(kind)]

    def _function(self, target: Any) -> object:
        module, name = getattr(target, "__module__", None), getattr(target, "__qualname__", None)
        if isinstance(target, torch._ops.OpOverload | torch._ops.OpOverloadPacket | torch._ops.HigherOrderOperator):
            if str(target).startswith("triton_kernel_wrapper"):
                raise NoKey("the graph calls a kernel of Triton's by a number that only this process knows")
            return ["op", str(target)]
        if isinstance(target, types.FunctionType) and not _is_global(module):
            return self._python(target)
        if isinstance(target, type):
            return ["type", self._class(target)]
        owner = getattr(target, "__self__", None)
        if isinstance(owner, types.ModuleType):
            owner = None
        if name and (module is None or _is_global(module)) and (owner is None or isinstance(owner, type)):
            return ["function", module or (owner.__module__ if isinstance(owner, type) else ""), name]
        raise NoKey(f"the graph calls {target!r}, which has no name that is the same in every process")

    def _python(self, function: types.FunctionType) -> list[object]:
        """What a function of the user's does."""
        return ["code", self._identity(function)]

    def _identity(self, thing: Any) -> str:
        found = identify(thing)
        if found.unknown:
            raise NoKey(f"the graph calls {thing!r}, and {reasons(found.unknown)}")
        return found.digest

    def _value(self, value: object, numbers: Mapping[fx.Node, int]) -> object:
        """A constant, or a structure of constants and nodes. Lists are marked, so that nothing looks like another."""
        if value is None or isinstance(value, bool | str) or type(value) in (int, float):
            return value
        if isinstance(value, fx.Node):
            return ["node", numbers[value]]
        if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
            return ["size", self._size(value)]
        if isinstance(value, torch.Size):
            return ["tuple", *(self._value(one, numbers) for one in value)]
        if isinstance(value, tuple | list | set | frozenset):
            parts = [self._value(one, numbers) for one in value]
            if isinstance(value, set | frozenset):
                parts.sort(key=json.dumps)
            name = type(value).__name__ if type(value) in (tuple, list, set, frozenset) else self._class(type(value))
            return [name, *parts]
        if isinstance(value, Mapping):
            return ["dict", *([self._value(key, numbers), self._value(one, numbers)] for key, one in value.items())]
        if isinstance(value, slice | range):
            return [type(value).__name__, *(self._value(one, numbers) for one in (value.start, value.stop, value.step))]
        if isinstance(value, enum.Enum):
            return ["enum", self._class(type(value)), value.name]
        if isinstance(value, _PLAIN) or value is Ellipsis:
            return ["plain", str(value)]
        if isinstance(value, torch.device | complex | bytes):
            return [type(value).__name__, str(value)]
        if isinstance(value, torch.Tensor):
            return self._attribute(value)
        if callable(value):
            return self._function(value)
        raise NoKey(f"the graph has {value!r} of {type(value).__qualname__} in it, which no key can be made of")

    def _size(self, size: object) -> int | str:
        """A size: a number, a dynamic one as -1, -2, ..., and what is computed of those as a text."""
        if isinstance(size, int):
            return size
        node = getattr(size, "node", None)
        expression = str(size if node is None else node.expr)
        said = _SYMBOL.sub(lambda match: self._symbols.setdefault(match[0], f"-{len(self._symbols) + 1}"), expression)
        return int(said) if re.fullmatch(r"-?\d+", said) else said


def _is_global(module: str | None) -> bool:
    """Whether what is in a module is the same wherever the same version is installed."""
    return module is not None and module.split(".")[0] in _GLOBAL_NAMES


def _examples(module: fx.GraphModule, inputs: Iterable[object] | None) -> list[object]:
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    given = [_MISSING] * len(placeholders) if inputs is None else list(inputs)
    known = [_known(node) for node in placeholders] + [_MISSING] * (len(given) - len(placeholders))
    found = [ours if theirs is _MISSING else theirs for ours, theirs in zip(given, known, strict=False)]
    if any(one is _MISSING for one in found):
        nameless = placeholders[next(at for at, one in enumerate(found) if one is _MISSING)]
        raise NoKey(f"nothing is known of the input {nameless.name}; pass `inputs`")
    return found


def _known(node: fx.Node) -> object:
    return node.meta.get("example_value", node.meta.get("val", _MISSING))


def _content(tensor: torch.Tensor) -> str:
    """The digest of a tensor's bytes."""
    try:
        plain = tensor.detach().cpu().contiguous().reshape(-1)
        return blake3(plain.view(torch.uint8).numpy().tobytes()).hexdigest(length=16)
    except (RuntimeError, TypeError) as error:  # a fake tensor has none
        raise NoKey(f"the graph has a constant tensor that cannot be read: {error}") from error


def digest(what: object) -> str:
    """32 hexadecimal digits of what JSON can say."""
    return blake3(json.dumps(what, separators=(",", ":")).encode()).hexdigest(length=16)
