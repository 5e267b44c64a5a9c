"""Keys of calls that nobody has traced yet: what a function and its modules are, but for the sizes of arguments.

`Key.of` needs a graph, and tracing one takes most of a warm start. A key of a call says as much as can be seen without:
it says where to look, and the guards of what is found there decide whether it is right.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.autograd import forward_ad
from torch.nn.modules.module import _has_any_global_hook
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext

from warmstore.compiling.described import code_digest, describe, describe_bound
from warmstore.compiling.environment import Environment
from warmstore.compiling.keys import DeviceClass, InputSpec, Key, Reader, Versions, digest, modes
from warmstore.errors import NoKey

_PASSES = (
    "post_grad_custom_pre_pass", "post_grad_custom_post_pass", "joint_custom_pre_pass", "joint_custom_post_pass",
    "pre_grad_custom_pass", "_pre_fusion_custom_pass", "_post_fusion_custom_pass",
)  # fmt: skip


def key_of_call(
    function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], options: Mapping[str, Any], environment: Environment
) -> Key:
    """The key of calling a function, or the bound `forward` of a module, that is to be compiled with these options.

    Names of local variables do not count, nor do those of the function's parameters unless the call uses them; names of
    modules and parameters do, for guards look at them.

    Raises:
        NoKey: tensors of a kind, defaults or a closure that no other process could compare.
    """
    plain = getattr(function, "__func__", function)
    bound = describe_bound(plain)
    if bound is None:
        raise NoKey(f"{plain.__qualname__} has defaults or a closure with objects that have no name")
    leaves, structure = torch.utils._pytree.tree_flatten((args, kwargs))
    module = getattr(function, "__self__", None)
    graph: list[object] = [
        plain.__module__ if plain.__module__ != "__main__" else "",
        plain.__qualname__,
        code_digest(plain.__code__, parameters=bool(kwargs)),
        bound,
        str(structure),
        list(_modules(module)) if isinstance(module, nn.Module) else [],
        _same(leaf for leaf in leaves if isinstance(leaf, torch.Tensor)),
        shares_memory(leaves),
        sorted((name, repr(value)) for name, value in options.items()),
        _configuration(),
        torch.get_num_threads(),
    ]
    reader = Reader()
    return Key(
        digest(graph),
        tuple(_of_any_size(reader, leaf) for leaf in leaves),
        DeviceClass.of(environment),
        Versions(torch=str(torch.__version__)),
        modes(),
    )


def shares_memory(values: Iterable[object]) -> bool:
    """Whether tensors among some values lie in the same memory, which matters to programs that change them in place."""
    found = [one for one in values if isinstance(one, torch.Tensor) and one.layout == torch.strided]
    return len(found) > 1 and len({one.untyped_storage()._cdata for one in found}) < len(found)


def is_transformed() -> bool:
    """Whether calls are not only calls now: hooks of all modules, `torch.func`, forward-mode differentiation, and
    modes that see every operator."""
    return bool(
        _has_any_global_hook()
        or torch._C._functorch.peek_interpreter_stack() is not None
        or forward_ad._current_level >= 0
        or torch._C._len_torch_dispatch_stack()
    )


def is_in_a_mode() -> bool:
    """Whether a mode of the program's own sees every function of torch; the default device is one of torch's."""
    return any(type(mode) is not DeviceContext for mode in _get_current_function_mode_stack())


def program_of_call(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """What stays the same of a call while the program is edited, in 32 hexadecimal digits: names, not code.

    Sizes of arguments that differed for one version of a program differ for the next one, too.
    """
    plain = getattr(function, "__func__", function)
    leaves, structure = torch.utils._pytree.tree_flatten((args, kwargs))
    module = getattr(function, "__self__", None)
    modules = module.named_modules() if isinstance(module, nn.Module) else ()
    return digest(
        [
            plain.__module__ if plain.__module__ != "__main__" else "",
            plain.__qualname__,
            str(structure),
            [one.dim() if isinstance(one, torch.Tensor) else type(one).__qualname__ for one in leaves],
            [[name, type(one).__qualname__] for name, one in modules],
        ]
    )


def _modules(module: nn.Module) -> Iterator[list[object]]:
    """Every module with its name, class, mode, hooks, tensors and modules; the code of each class is said once.

    Which of the tensors and modules are the same one counts, too, and no guard looks at hooks.
    """
    reader = Reader()
    seen: set[type] = set()
    everything = list(module.named_modules())
    tensors = [[*one._parameters.items(), *one._buffers.items()] for _, one in everything]
    yield [_same(tensor for some in tensors for _, tensor in some if tensor is not None)]
    yield [_same(child for _, one in everything for child in one._modules.values() if child is not None)]
    for (name, one), some in zip(everything, tensors, strict=True):
        kind = type(one)
        said = [] if kind in seen or kind.__module__.split(".")[0] == "torch" else _forward(kind)
        seen.add(kind)
        specs = [
            [label, spec if isinstance(spec := reader.spec(tensor), str) else list(vars(spec).values())]
            for label, tensor in some
        ]
        yield [name, kind.__qualname__, one.training, said, specs, list(one._modules), _hooks(one)]


def _same(objects: Iterable[object]) -> list[int]:
    """A number for each of some objects, the same for the same."""
    numbers: dict[int, int] = {}
    return [numbers.setdefault(id(one), len(numbers)) for one in objects]


def _forward(kind: type) -> list[str]:
    code = getattr(getattr(kind, "forward", None), "__code__", None)
    return [] if code is None else [code_digest(code, parameters=False)]


def _hooks(module: nn.Module) -> list[list[str]]:
    kinds = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
    found = [[describe(hook) or "" for hook in getattr(module, kind).values()] for kind in kinds]
    if any("" in some for some in found):
        raise NoKey(f"{type(module).__qualname__} has a hook that has no name")
    return found


def _of_any_size(reader: Reader, value: object) -> InputSpec | str:
    """An argument without its sizes: those that differ are compiled for once, or have packages of their own."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return type(value).__name__
    if isinstance(value, torch.Tensor):
        spec = reader.spec(value)
        assert isinstance(spec, InputSpec)
        return InputSpec(("any",) * value.dim(), (), spec.dtype, spec.layout, spec.device, spec.requires_grad)
    return repr(value) if isinstance(value, str | bytes | bool | None) else type(value).__qualname__


def _configuration() -> list[list[tuple[str, str]]]:
    """Options of torch's compiler: plain values that are no folders. Others have no text that is the same elsewhere."""
    from torch._dynamo import config as dynamo
    from torch._functorch import config as functorch
    from torch._inductor import config as inductor

    if (name := next((one for one in _PASSES if getattr(inductor, one, None) is not None), None)) is not None:
        raise NoKey(f"torch._inductor.config.{name} is set, and what a pass does has no name")
    plain = bool | int | float | str | None
    return [
        sorted(
            (name, repr(value))
            for name, value in config.get_config_copy().items()
            if isinstance(value, plain) and "dir" not in name
        )
        for config in (dynamo, functorch, inductor)
    ]
