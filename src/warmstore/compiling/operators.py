"""Operators that programs add to torch in Python.

What one computes, and its gradient, may be Python code that torch runs while it differentiates or takes a graph apart.
torch's keys of differentiated graphs have the operator's name alone, and so does a compiled package: an edited formula
would go on with the old one. The graphs that come after, which Inductor compiles, have all of it in them.
"""

from typing import Any

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
