"""Keys of calls, made before tracing from all that tracing may read except the sizes of arguments.

The key of a graph would need tracing, which takes most of a warm start. The key of a call is made from identities.
Guards check the packages of a key in every call.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from operator import attrgetter
from types import CodeType, MethodType
from typing import Any

import numpy as np
import torch
from torch import distributed, nn
from torch._dynamo.external_utils import wrap_inline
from torch._functorch._aot_autograd import utils as aot_autograd
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd import forward_ad
from torch.nn.modules.module import _has_any_global_hook

from warmstore.compiling.environment import Environment
from warmstore.compiling.keys.graph_keys import GraphKey, InputSpec, digest, modes
from warmstore.compiling.keys.identified import identify_options, identity_of, is_plain, structure_text
from warmstore.compiling.keys.operators import attention_switches
from warmstore.compiling.misses.key_descriptions import KeyDescription, facts_as_parts
from warmstore.errors import NoFingerprint
from warmstore.identity.identity import Identity
from warmstore.identity.kinds.torch_settings import value_of

_MOST_FACTS = 4_000
_TENSORS = (torch.Tensor, nn.Parameter, nn.Buffer, FakeTensor)
_WRAPPED = wrap_inline(abs).__code__  # of the frame in which Dynamo calls functions of torch
CONSTANTS = (
    torch._C._get_cublas_allow_tf32, torch._C._get_privateuse1_backend_name, torch._C._is_any_autocast_enabled,
    torch.accelerator.is_available, torch.autograd._is_checkpoint_valid, torch.cuda.is_available,
    distributed.is_available, torch.get_default_dtype, torch.is_autocast_cache_enabled, torch.is_inference_mode_enabled,
    torch.xpu.is_available,
)  # fmt: skip
"""Functions that Dynamo calls while it traces, and whose results it takes as constants, beside ranks and autocast."""
_SETTINGS = (
    "mkldnn.enabled", "mkldnn.deterministic", "cudnn.enabled", "cudnn.benchmark", "cudnn.deterministic",
    "cudnn.allow_tf32", "cuda.matmul.allow_tf32", "opt_einsum.enabled", "opt_einsum.strategy", "quantized.engine",
)  # fmt: skip
_PASSES = (
    "post_grad_custom_pre_pass", "post_grad_custom_post_pass", "joint_custom_pre_pass", "joint_custom_post_pass",
    "pre_grad_custom_pass", "_pre_fusion_custom_pass", "_post_fusion_custom_pass",
)  # fmt: skip


def key_of_call(
    identities: Iterable[Identity],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    options: Mapping[str, Any],
    environment: Environment,
) -> GraphKey:
    """The key of a call. The shapes and numbers among its arguments do not count.

    Args:
        identities: Of the program and of the arguments.
        options: Of `torch.compile`.

    Raises:
        NoFingerprint: A part of the program has no identity, or a tensor is of an unsupported class.
    """
    known = [*identities, identify_options(options)]
    for identity in known:
        identity.require()
    leaves, structure = torch.utils._pytree.tree_flatten((args, kwargs))
    program: list[object] = [
        [identity.digest for identity in known],
        structure_text(structure),
        _same(leaf for leaf in leaves if isinstance(leaf, torch.Tensor)),
        shares_memory(leaves),
        process_state(),
        _configuration(),
        torch.get_num_threads(),
    ]
    return GraphKey(
        digest(program),
        tuple(map(_of_any_size, leaves)),
        "cuda" if environment.gpus else "cpu",
        str(torch.__version__),
        modes(),
    )


def details_of_call(identities: Iterable[Identity], key: GraphKey, options: Mapping[str, Any]) -> KeyDescription:
    """The parts of a key, which are compared with those of other keys on a miss. More than 4,000 facts are left out."""
    facts: dict[str, str] = {}
    for identity in identities:
        facts |= identity.facts
    parts = facts_as_parts(facts) if len(facts) <= _MOST_FACTS else {}
    for position, spec in enumerate(key.inputs):
        texts = {"type": spec} if isinstance(spec, str) else {name: str(value) for name, value in vars(spec).items()}
        parts |= {f"input {position}: {name}": text for name, text in texts.items()}
    parts |= {f"option {name}": repr(value) for name, value in options.items()}
    parts |= dict(mode.partition(" ")[::2] for mode in key.modes)
    parts["torch.get_num_threads()"] = str(torch.get_num_threads())
    parts |= dict(process_state())
    parts |= {f"config {name}": value for config in _configuration() for name, value in config}
    return KeyDescription(parts)


def shares_memory(values: Iterable[object]) -> bool:
    """Whether two tensors among some values share memory, which matters to programs that change tensors in place."""
    found = [value for value in values if isinstance(value, torch.Tensor) and value.layout == torch.strided]
    return len(found) > 1 and len({tensor.untyped_storage()._cdata for tensor in found}) < len(found)


def overlap(variables: Mapping[str, object]) -> bool:
    """Whether two tensors share memory, among the variables of a frame and in their containers."""
    return shares_memory(torch.utils._pytree.tree_leaves(list(variables.values())))


def is_transformed() -> bool:
    """Whether something transforms calls now: global module hooks, `torch.func`, forward-mode differentiation, a
    dispatch mode, or hooks of saved tensors that are graphs, which Dynamo adds to the graph that it compiles."""
    return bool(
        _has_any_global_hook()
        or torch._C._functorch.peek_interpreter_stack() is not None
        or forward_ad._current_level >= 0
        or torch._C._len_torch_dispatch_stack()
        or aot_autograd.saved_tensors_hooks_are_inlineable(aot_autograd.top_saved_tensors_hooks())
    )


def is_root(model: Any, frame: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a frame is the first of a call: it runs the code of `model`, with the very same arguments."""
    local = frame.f_locals
    code: CodeType = frame.f_code
    if isinstance(model, nn.Module):
        forward = getattr(type(model).forward, "__code__", None)
        is_called = code is forward and local.get(code.co_varnames[0]) is model
    else:
        is_called = code is getattr(getattr(model, "__func__", model), "__code__", None)
        if isinstance(model, MethodType):
            is_called = is_called and local.get(code.co_varnames[0]) is model.__self__
    if not is_called and not (code is _WRAPPED and local.get("fn") is model):
        return False
    given = [local.get(name) for name in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + 2]]
    inside = set(map(id, torch.utils._pytree.tree_leaves(given)))
    return inside.issuperset(map(id, torch.utils._pytree.tree_leaves((args, kwargs))))


def process_state() -> list[tuple[str, str]]:
    """The state of this process that Dynamo takes as constant: ranks, devices, settings of kernels."""
    found = {function.__name__: repr(value_of(function)) for function in CONSTANTS}
    for kind in ("cpu", "cuda"):
        found[f"autocast {kind}"] = f"{torch.is_autocast_enabled(kind)} {torch.get_autocast_dtype(kind)}"
    for name in _SETTINGS:
        found[name] = repr(value_of(partial(attrgetter(name), torch.backends)))
    found |= attention_switches()
    if distributed.is_available() and distributed.is_initialized():
        found["rank"] = f"{distributed.get_rank()} of {distributed.get_world_size()}"
        groups = distributed.distributed_c10d._world.pg_group_ranks.values()
        found["process groups"] = repr([sorted(group.items()) for group in groups])
    return sorted(found.items())


def program_of_call(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """A hash of the names in a call, without code, in 32 hexadecimal digits. It stays when the program is edited.

    Sizes that differed between calls of one version of a program are compiled as dynamic for the next version.
    """
    named = model if hasattr(model, "__qualname__") else type(model)
    leaves, structure = torch.utils._pytree.tree_flatten((args, kwargs))
    modules = model.named_modules() if isinstance(model, nn.Module) else ()
    return digest(
        [
            named.__module__ if named.__module__ != "__main__" else "",
            named.__qualname__,
            structure_text(structure),
            [leaf.dim() if isinstance(leaf, torch.Tensor) else type(leaf).__qualname__ for leaf in leaves],
            [[name, type(module).__qualname__] for name, module in modules],
        ]
    )


def _same(objects: Iterable[object]) -> list[int]:
    """A number for each object; the same object has the same number."""
    numbers: dict[int, int] = {}
    return [numbers.setdefault(id(value), len(numbers)) for value in objects]


def _of_any_size(value: object) -> InputSpec | str:
    """The text or specification of an argument, without its sizes."""
    if type(value) in (int, float):
        return type(value).__name__
    if isinstance(value, torch.Tensor):
        if type(value) not in _TENSORS or value.is_quantized:
            raise NoFingerprint(
                f"an argument is a {type(value).__qualname__}; only plain tensors, parameters and buffers are supported"
            )
        return InputSpec(value.dim(), str(value.dtype), str(value.layout), _device(value.device), value.requires_grad)
    if isinstance(value, np.ndarray | np.generic):
        return f"{type(value).__qualname__} {value.dtype} {value.ndim}"
    return repr(value) if is_plain(value) else type(value).__qualname__


def _device(device: torch.device) -> str:
    """A device, and of a GPU its model and compute capability: kernels are compiled for these, and the environment
    lacks them where NVIDIA's library cannot be asked, as in WSL, in some containers and with ROCm."""
    if device.type != "cuda" or not torch.cuda.is_initialized():
        return str(device)
    gpu = torch.cuda.get_device_properties(device)
    return f"{device} {gpu.name} {gpu.major}.{gpu.minor}"


def _configuration() -> list[list[tuple[str, str]]]:
    """Options of torch's compilers, by configuration. Folders are left out, which differ between processes."""
    from torch._dynamo import config as dynamo
    from torch._functorch import config as functorch
    from torch._inductor import config as inductor

    for name in _PASSES:
        if getattr(inductor, name, None) is not None:
            raise NoFingerprint(f"torch._inductor.config.{name} is set, and a custom pass has no identity")
    return [sorted(_option_texts(config)) for config in (dynamo, functorch, inductor)]


def _option_texts(config: Any) -> Iterator[tuple[str, str]]:
    """The names and texts of the options of a configuration. Functions, classes and containers have the facts of their
    identity, and no text where they are the default. Raises NoFingerprint where they have no identity."""
    plain = bool | int | float | str | None
    for name, value in config.get_config_copy().items():
        if "dir" in re.split(r"[._]", name):
            continue
        if isinstance(value, plain) or name == "cpp.cxx":  # the default compiler depends on a variable
            yield name, repr(value)
        elif value != config._config[name].default:
            yield from identity_of(value, f"{config.__name__}.{name}").require().facts.items()
