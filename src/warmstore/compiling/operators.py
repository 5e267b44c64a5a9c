"""What graphs call: torch's own operators, functions of the program, and operators that programs add in Python.

What one computes, and its gradient, may be Python code that torch runs while it differentiates or takes a graph apart.
torch's keys of differentiated graphs have the operator's name alone, and so does a compiled package: an edited formula
would go on with the old one. The graphs that come after, which Inductor compiles, have all of it in them.
"""

from collections.abc import Collection, Iterable
from types import FunctionType
from typing import Any

from warmstore.identity.origin import origin_of_function, origin_of_name

_OF_TORCH = frozenset({
    "_c10d_functional", "_c10d_functional_autograd", "_dtensor", "_inductor_test", "_native", "aten", "c10d",
    "c10d_functional", "debug_mode_ops", "debugprims", "export", "flex_lib", "fsdp", "inductor", "mkl", "mkldnn",
    "onednn", "onnx", "onnx_symbolic", "prim", "prims", "profiler", "quantized", "quantized_decomposed", "rngprims",
    "streams", "symm_mem",
})  # fmt: skip
"""Namespaces whose operators are those of torch's version."""


def python_operators(graph: Any) -> list[str]:
    """The names of operators in a graph module, and in those within it, that have parts in Python; as "mine::sine"."""
    import torch
    from torch._library.custom_ops import OPDEFS
    from torch.library import _impls

    found = set()
    for module in graph.modules():
        for node in module.graph.nodes if isinstance(module, torch.fx.GraphModule) else ():
            if isinstance(node.target, torch._ops.OpOverload):
                found.add(node.target._schema.name)
            elif isinstance(node.target, torch._ops.OpOverloadPacket):
                found.add(node.target._qualified_op_name)
    mine = [name for name in found if name.partition("::")[0] not in _OF_TORCH]
    prefixes = {one.rpartition("/")[0].partition(".")[0] for one in _impls} if mine else set()
    return sorted(name for name in mine if name in OPDEFS or name.replace("::", "/") in prefixes)


def targets_of(graph: Any) -> list[Any]:
    """What a graph module, and those within it, call."""
    import torch

    modules = [one for one in graph.modules() if isinstance(one, torch.fx.GraphModule)]
    return [node.target for one in modules for node in one.graph.nodes if node.op == "call_function"]


def unknown_targets(targets: Iterable[Any], identified: Collection[int]) -> list[str]:
    """Why what graphs call may be another thing elsewhere, unseen.

    Args:
        targets: what they call.
        identified: the addresses of the code that counts in the key.
    """
    import torch

    unknown = set()
    for target in targets:
        if str(target).startswith("triton_kernel_wrapper"):
            unknown.add("its graph calls a kernel of Triton's by a number that only this process knows")
        elif isinstance(target, torch._ops.OpOverload | torch._ops.OpOverloadPacket | torch._ops.HigherOrderOperator):
            continue
        elif isinstance(target, FunctionType):
            if origin_of_function(target).is_program and id(target.__code__) not in identified:
                unknown.add(f"its graph calls {target.__qualname__}, which was neither traced nor is it in the key")
        elif not _is_installed(target):
            unknown.add(f"its graph calls {target!r}")
    return sorted(unknown)


def _is_installed(target: Any) -> bool:
    """Whether something that is no function of Python is torch's or Python's own."""
    owner = getattr(target, "__self__", None)
    module = getattr(target, "__module__", None) or getattr(owner, "__module__", None) or "builtins"
    return not origin_of_name(module.partition(".")[0]).is_program
