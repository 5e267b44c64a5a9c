"""Rules of torch: tensors of every layout, modules, and code that torch generates itself.

The walk imports this module when it meets the first object of torch, so that other identities need no torch.
"""

from __future__ import annotations

import io
import re
import sys
import warnings
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
import xxhash
from torch import nn, overrides
from torch.autograd import forward_ad
from torch.utils import _python_dispatch

from warmstore.identity.kinds.registry import Rule, inert
from warmstore.identity.kinds.training_state import BACKWARD_HOOKS, HOOKS_OF_TENSORS, record_hooks
from warmstore.identity.origin import origin_of_name
from warmstore.identity.places import Place
from warmstore.identity.plain_data import atom_text, order_text
from warmstore.identity.settled_state import LEFT
from warmstore.identity.walk import Walk

_OF_EVERY_MODULE = frozenset(vars(nn.Module())) | {
    "_is_torch_compile", "_compiled_call_impl", "_is_hf_initialized",
    "_compile_kwargs",  # which Lightning keeps, as its torch.compile was called
}  # fmt: skip
_OF_GRAPHS = frozenset(
    ("_code", "_lineno_map", "_graph", "_prologue_start", "_tracer_cls", "_tracer_extras", "meta", "shape_env",
     "_create_node_hooks", "_erase_node_hooks", "_replace_hooks", "_deepcopy_hooks", "range_constraints",
     "validate_inputs", "_metadata", "train", "eval")
)  # fmt: skip
"""Attributes of a graph module that do not count: its generated `forward` decides what it computes."""

_HOLDERS = ("_parameters", "_buffers", "_modules")
_HOOKS = ("_forward_pre_hooks", "_forward_hooks")
_FLAGS = ("_forward_hooks_with_kwargs", "_forward_hooks_always_called", "_forward_pre_hooks_with_kwargs")
GLOBAL_HOOKS = (nn.modules.module._global_forward_pre_hooks, nn.modules.module._global_forward_hooks)
"""Hooks that run for every module."""

_WATCHERS = (
    "torch.utils._device", "torch.utils.flop_counter", "torch.utils.checkpoint", "torch.utils._debug_mode",
    "torch.utils.module_tracker", "torch.cuda._sanitizer", "torch.distributed._tools.",
    "torch.distributed.tensor.debug.",
)  # fmt: skip
"""Modules of torch whose modes and hooks leave the results of operators as they are."""

_MANGLED = re.compile(rb"[./]?___torch_mangle_(\d+)")
_DEFINITION = re.compile(rb"^(?=class |def )", re.MULTILINE)
_NOT_CODE = (b".debug_pkl", b"version", b"byteorder", b"serialization_id")


def rule_of(kind: type) -> Rule | None:
    """The rule of a type of torch; None if its objects count as other objects do."""
    if issubclass(kind, torch.jit.ScriptModule | torch.jit.ScriptFunction):
        return _script
    if issubclass(kind, nn.Module):
        return _module
    if issubclass(kind, torch.Tensor):
        return _tensor
    for base, rule in _RULES:
        if issubclass(kind, base):
            return rule
    return None


def _tensor(walk: Walk, place: Place, value: Any) -> None:
    kind = type(value)
    if torch.nn.parameter.is_lazy(value):
        walk.cannot_tell(place, "a lazy parameter has no values yet; call the module once before")
        return
    if walk.settings.tensors == "content" and is_transformed(value):
        walk.cannot_tell(place, "a tensor within torch.func or forward mode has more than its values: call it outside")
        return
    if kind not in (torch.Tensor, nn.Parameter, nn.Buffer):
        inner = getattr(value, "__tensor_flatten__", None)
        walk.fact(place, f"object of {walk.cls(kind)}")
        walk.watch(vars(value))
        walk.tensors.append((place, value))
        for name, attribute in sorted(vars(value).items()):
            walk.whole(place + f".{name}", attribute)
        if inner is not None:
            names, context = inner()
            walk.whole(place + ".<context>", context)
            for name in names:
                walk.whole(place + f".{name}", getattr(value, name))
        else:
            walk.fact(place + ".<tensor>", _text(walk, place + ".<tensor>", value))
        return
    text = _text(walk, place, value)
    if text != LEFT:
        walk.origin(origin_of_name("torch"))  # code may reach its operators without its name, as in `a @ b`
    if text != LEFT or kind is not torch.Tensor:
        walk.tensors.append((place, value))
    if walk.settings.tensors == "layout":
        text += f" {kind.__name__} {'grad' if value.requires_grad else ''} {'leaf' if value.is_leaf else ''}".rstrip()
    elif text != LEFT and (kind is not torch.Tensor or value.requires_grad):
        # Whether a parameter requires gradients makes no difference to most results.
        head, _, content = text.rpartition(" ")
        text = f"{head} {'grad' if kind is torch.Tensor else kind.__name__} {content}"
    _memory(walk, place, value)
    walk.fact(place, text)
    if place not in walk.weights or vars(value):
        walk.watch(vars(value))
        walk.watch_probe(partial(_gradient_state, value))
    if text != LEFT and (kind is torch.Tensor or walk.settings.tensors == "layout"):
        # Hooks of the backward pass. Those of parameters do not count outside compiled code.
        record_hooks(walk, place, value)
    if kind is torch.Tensor and value.is_leaf and value.grad is not None:
        walk.whole(place + ".grad", value.grad)
    for name, attribute in sorted(vars(value).items()):
        if not name.startswith("_"):
            walk.whole(place + f".{name}", attribute)


def is_transformed(value: torch.Tensor) -> bool:
    """Whether a tensor stands for others within `torch.func`, or has a tangent of forward-mode differentiation."""
    if torch._C._functorch.is_functorch_wrapped_tensor(value):
        return True
    return forward_ad._current_level >= 0 and forward_ad.unpack_dual(value).tangent is not None


def _gradient_state(value: torch.Tensor) -> list[Any]:
    """Whether a tensor requires a gradient, the address of its gradient, and those of its hooks."""
    hooks = [getattr(value, name, None) or {} for name in HOOKS_OF_TENSORS]
    gradient = id(value.grad) if value.is_leaf else 0
    return [value.requires_grad, gradient, *(id(hook) for holder in hooks for hook in holder.values())]


def _memory(walk: Walk, place: Place, value: torch.Tensor) -> None:
    """Record that a tensor shares memory with another: a write to the first may change the second."""
    if value.layout != torch.strided or value.device.type == "meta":
        return
    try:
        storage = value.untyped_storage()._cdata
    except (RuntimeError, NotImplementedError):  # a tensor without storage
        return
    known = walk.memory.setdefault(storage, place)
    if known != place:
        walk.fact(place + ".<memory>", f"same as {walk.key_of(known)} from {value.storage_offset()} on")


def _text(walk: Walk, place: Place, value: torch.Tensor) -> str:
    if walk.settings.tensors == "layout":
        return tensor_text(value, "layout")
    return walk.watched_text(place, value, tensor_text)


def tensor_text(value: torch.Tensor, how: str = "content") -> str:
    """The text of a tensor: dtype, shape, layout, device type and, unless `how` is "layout", its elements."""
    with torch.no_grad(), _as_without_modes():
        head = f"tensor {str(value.dtype)[6:]} {tuple(value.shape)}"
        if how == "layout" or value.device.type == "meta":
            strides = value.stride() if value.layout == torch.strided else ""
            scales = f" {_scales(value)}" if value.is_quantized else ""
            return f"{head} {strides}{_order(value)} {value.layout} {value.device}{scales}"
        return f"{head}{_order(value)} {_content(value.detach())}"


def _order(value: torch.Tensor) -> str:
    if value.layout != torch.strided:
        return f" {value.layout}{' coalesced' if value.layout == torch.sparse_coo and value.is_coalesced() else ''}"
    flags = (" conj" if value.is_conj() else "") + (" neg" if value.is_neg() else "")
    return order_text(tuple(value.shape), value.stride(), is_contiguous=value.is_contiguous()) + flags


def _content(value: torch.Tensor) -> str:
    """The hash of a tensor's elements, with the indices of a sparse and the scales of a quantised tensor."""
    digest = xxhash.xxh3_128()
    for part in _parts(value):
        if isinstance(part, torch.Tensor):
            digest.update(f"{part.dtype} {tuple(part.shape)};".encode())
            digest.update(tensor_bytes(part))
        else:
            digest.update(f"{part!r};".encode())
    return digest.hexdigest()


def _scales(value: torch.Tensor) -> str:
    """The text of the scales and zero points of a quantised tensor."""
    if value.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric):
        return f"{value.qscheme()} {value.q_scale()!r} {value.q_zero_point()}"
    parts = [value.q_per_channel_scales(), value.q_per_channel_zero_points()]
    return f"{value.qscheme()} {[xxhash.xxh3_64_hexdigest(tensor_bytes(part)) for part in parts]}"


def _parts(value: torch.Tensor) -> list[Any]:
    if value.is_nested:
        return [part for tensor in value.unbind() for part in _parts(tensor)]
    if value.layout == torch.sparse_coo:
        if value.is_coalesced():
            return [True, value.indices(), value.values()]
        return [False, value._indices(), value._values()]
    if value.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [value.crow_indices(), value.col_indices(), value.values()]
    if value.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [value.ccol_indices(), value.row_indices(), value.values()]
    if value.is_quantized:
        if value.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric):
            return [value.qscheme(), value.int_repr(), value.q_scale(), value.q_zero_point()]
        scales, points = value.q_per_channel_scales(), value.q_per_channel_zero_points()
        return [value.qscheme(), value.int_repr(), scales, points, value.q_per_channel_axis()]
    if value.layout != torch.strided:
        return [value.to_dense()]
    return [value]


def tensor_bytes(value: torch.Tensor) -> Any:
    """The elements of a dense tensor in logical order, as bytes on the CPU."""
    value = value.resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
    if not value.numel():
        return b""
    if value.numel() == 1:
        value = value.as_strided((1,), (1,))  # torch calls a single element contiguous, whatever its stride
    flat: np.ndarray[Any, Any] = value.view(torch.uint8).numpy()
    return flat.data


def _module(walk: Walk, place: Place, value: Any) -> None:
    """Record a module: class, tensors, children, hooks and settings. What code reads its mode is known in the end."""
    if is_compiled(value):
        walk.whole(place, value._orig_mod)  # the compiled module computes the same
        return
    walk.fact(place, f"module of {walk.cls(type(value), of_made=True)}")
    walk.modules.append((place, value))
    state = vars(value)
    walk.watch_object(value)
    walk.watch_items(state, [name for name in state if name not in _OF_EVERY_MODULE or name == "training"])
    for holder in (*_HOLDERS, *_FLAGS):
        if holder in state:
            walk.watch(state[holder])
    # Compiled code includes the backward pass.
    hooks = (*_HOOKS, *BACKWARD_HOOKS) if walk.settings.tensors == "layout" else _HOOKS
    skipped = _OF_EVERY_MODULE | _OF_GRAPHS if isinstance(value, torch.fx.GraphModule) else _OF_EVERY_MODULE
    for name, attribute in sorted(state.items()):
        if name not in skipped:
            walk.whole(place + f".{name}", attribute)
    for holder in _HOLDERS:
        inside = state.get(holder) or {}
        walk.fact(place + f".<{holder[1:]}>", f"{list(inside)}")
        for name, part in inside.items():
            if isinstance(part, torch.Tensor) and name not in state["_non_persistent_buffers_set"]:
                walk.weight(place + f".{name}", part)
            elif type(part).__qualname__ != "GuardsFn":  # of torch.export: it checks inputs and computes nothing
                walk.whole(place + f".{name}", part)
    for holder in hooks:
        if holder not in state:
            continue
        walk.watch_code(state[holder])
        flags = [[key in (state.get(flag) or ()) for flag in _FLAGS] for key in state[holder]]
        if flags:
            walk.fact(place + f".{holder}", f"{len(flags)} {flags}")
        for at, hook in enumerate(state[holder].values()):
            walk.whole(place + f".{holder}[{at}]", hook)


def is_compiled(module: nn.Module) -> bool:
    """Whether a module is a result of `torch.compile`, which wraps another module."""
    eval_frame = sys.modules.get("torch._dynamo.eval_frame")
    return eval_frame is not None and isinstance(module, eval_frame.OptimizedModule)


def _script(walk: Walk, place: Place, value: Any) -> None:
    """Record a result of `torch.jit` by the code and the tensors that it saves, without its debug information."""
    buffer = io.BytesIO()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of deprecation
            torch.jit.save(value, buffer)
    except Exception as error:
        walk.cannot_tell(place, f"torch.jit cannot save it: {error}")
        return
    walk.origin(origin_of_name("torch"))
    walk.fact(place, f"{type(value).__name__} {_saved_text(buffer.getvalue())}")
    if isinstance(value, torch.jit.ScriptModule):
        for name, tensor in (*value.named_parameters(), *value.named_buffers()):
            walk.weight(place + f".{name}", tensor)
        for child in value.modules():
            walk.watch_cell(partial(getattr, child, "training", None))
            _watch_attributes(walk, child)


def _watch_attributes(walk: Walk, module: Any) -> None:
    """Watch the attributes that a module of `torch.jit` keeps in C++: which tensors, and the content of others."""
    known = getattr(module, "_concrete_type", None)
    names = set(() if known is None else known.get_attributes()) - {"training", "_is_full_backward_hook"}
    bare = type(walk)("", replace(walk.settings, watch=None))  # does not keep what this walk has found
    for name in names:
        read = partial(module._c.getattr, name)
        if isinstance(read(), torch.Tensor | None):
            walk.watch_cell(read)
        else:
            walk.watch_probe(partial(_text_of, bare, read))


def _text_of(walk: Walk, read: Callable[[], Any]) -> str:
    return atom_text(value := read()) or walk.apart(value)


def _saved_text(data: bytes) -> str:
    """The hash of what `torch.jit` saves: data, and code class by class.

    torch numbers classes of the same name with a counter of the process. The numbers are removed, and their order kept.
    """
    parts: list[tuple[bytes, int, bytes]] = []
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for name in archive.namelist():
            inside = name.partition("/")[2].encode()
            if inside.endswith(_NOT_CODE) or inside.startswith(b"traced_inputs"):
                continue
            number = _MANGLED.search(inside)
            place, content = _MANGLED.sub(b"", inside), _MANGLED.sub(b"", archive.read(name))
            blocks = filter(None, _DEFINITION.split(content)) if inside.startswith(b"code/") else [content]
            parts += [
                (place + b" " + block.partition(b"\n")[0], int(number[1]) if number else -1, block) for block in blocks
            ]
    digest = xxhash.xxh3_128()
    for place, _, block in sorted(parts):
        digest.update(b"%b %d;" % (place, len(block)) + block)
    return digest.hexdigest()


def _script_object(walk: Walk, place: Place, value: Any) -> None:
    """Record an object of C++ by its state, such as the packed parameters of a quantised layer."""
    walk.origin(origin_of_name("torch"))
    try:
        state = walk.apart(value.__getstate__())  # each call returns a new object
    except Exception as error:
        walk.cannot_tell(place, f"the state of a {value._type()} cannot be read ({type(error).__name__})")
        return
    walk.fact(place, f"object of {value._type()} {xxhash.xxh3_128_hexdigest(state.encode())}")


def _named(walk: Walk, place: Place, value: Any) -> None:
    walk.origin(origin_of_name("torch"))
    walk.fact(place, f"{type(value).__name__} {value}")


def _operator(walk: Walk, place: Place, value: Any) -> None:
    name = str(getattr(value, "_qualified_op_name", None) or getattr(value, "name", lambda: value)())
    walk.origin(origin_of_name("torch"))
    walk.fact(place, f"operator {name} {getattr(value, '_overloadname', '')}".rstrip())
    if name.partition("::")[0] not in _TORCHS_OWN:
        walk.cannot_tell(place, f"the operator {name} was registered by the program; its code is unknown")


_TORCHS_OWN = frozenset(
    ("aten", "prims", "prim", "quantized", "mkldnn", "mkldnn_prepacked", "inductor", "c10d", "_c10d_functional",
     "_c10d_functional_autograd", "sparse", "profiler", "rngprims", "higher_order", "onednn", "_quantized", "image",
     "torchvision", "torchaudio", "xnnpack", "metal", "vulkan", "nccl", "symm_mem", "debugprims", "fsdp", "streams")
)  # fmt: skip


def _random_generator(walk: Walk, place: Place, value: Any) -> None:
    walk.state(place, lambda: f"torch.Generator {generator_text(value)}")


def _exported(walk: Walk, place: Place, value: Any) -> None:
    walk.fact(place, f"object of {type(value).__qualname__}")
    walk.whole(place + ".<module>", value.module())


def _graph(walk: Walk, place: Place, value: Any) -> None:
    walk.fact(place, f"graph {xxhash.xxh3_128_hexdigest(str(value.python_code('self').src).encode())}")


def autocast_modes(device: torch.device | None = None) -> list[str]:
    """Device and dtype of each autocast that is on in the current thread: of the CPU, the accelerator, and `device`."""
    devices = torch.accelerator.current_accelerator(), device
    return [
        f"{kind} {torch.get_autocast_dtype(kind)}"
        for kind in sorted({"cpu", *(each.type for each in devices if each is not None)})
        if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
    ]


def modes_text() -> str:
    """The modes of the current thread that decide the results of operators: gradients, inference and autocast."""
    autocast = [f"autocast {mode}" for mode in autocast_modes()]
    modes = ["grad"] * torch.is_grad_enabled() + ["inference"] * torch.is_inference_mode_enabled()
    return " ".join([*modes, *autocast])


def operator_modes() -> list[Any]:
    """The modes of the program and of libraries in the current thread that replace operators, the outermost first.

    `with torch.device(...)` is none of them: it counts as the default device. Nor are torch's own that only watch
    operators, such as `FlopCounterMode`.
    """
    if not (torch._C._len_torch_function_stack() or torch._C._len_torch_dispatch_stack()):
        return []
    stack = *overrides._get_current_function_mode_stack(), *_python_dispatch._get_current_dispatch_mode_stack()
    return [mode for mode in stack if not only_watches(mode)]


def only_watches(mode_or_hook: Any) -> bool:
    """Whether a mode or a hook is one of torch's own that leaves results as they are."""
    return str(getattr(mode_or_hook, "__module__", "")).startswith(_WATCHERS)


@contextmanager
def _as_without_modes() -> Iterator[None]:
    """In this context, operators are torch's own."""
    if not operator_modes():
        yield
        return
    with torch._C.DisableTorchFunction(), _python_dispatch._disable_current_modes():
        yield


def draws(name: str) -> bool:
    """Whether a function of torch draws from the default generator."""
    return name.rstrip("_") in _DRAWS


def generator_text(generator: torch.Generator = torch.default_generator) -> str:
    """The hash of the state of a random generator."""
    return xxhash.xxh3_128_hexdigest(tensor_bytes(generator.get_state()))


_DRAWS = frozenset(
    ("rand", "randn", "randint", "randperm", "rand_like", "randn_like", "randint_like", "bernoulli", "multinomial",
     "normal", "poisson", "dropout", "alpha_dropout", "feature_dropout", "rrelu", "binomial", "uniform", "exponential")
)  # fmt: skip

_RULES: tuple[tuple[Any, Rule], ...] = (
    ((torch.dtype, torch.device, torch.layout, torch.memory_format, torch.finfo, torch.iinfo, torch.Size), _named),
    ((torch._ops.OpOverload, torch._ops.OpOverloadPacket, torch._ops.HigherOrderOperator), _operator),
    (torch.Generator, _random_generator),
    (torch.utils.hooks.RemovableHandle, inert),
    (torch.ScriptObject, _script_object),
    (torch.fx.Graph, _graph),
    (torch.export.ExportedProgram, _exported),
)
