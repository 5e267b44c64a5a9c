"""The vector instructions that Inductor compiles for, which are in none of torch's keys.

Inductor chooses them anew for each graph: by the CPU, the compiler, an option, and the present value of
ATEN_CPU_CAPABILITY. A graph contains C++ sources for vectors of one width. Its libraries are compiled for the vectors
of the process that loads it, and with others they compute wrong results.
"""

from __future__ import annotations

import sys
from typing import Any


def vector_isa() -> str:
    """Names, width and compiler flags of the vector instructions that Inductor chooses now. The first call may test
    whether they compile. "none" without a compiler. The level of torch's own kernels is not compiled in."""
    import torch._inductor.cpu_vec_isa

    try:
        isa = torch._inductor.cpu_vec_isa.pick_vec_isa()
    except Exception:  # there is no compiler: graphs that only call kernels of torch need none
        return "none"
    return " ".join(f"{isa} {isa.bit_width()} {isa.build_arch_flags()}".split())


def vector_isa_of(graph: Any) -> str:
    """`vector_isa` for a graph module with a tensor on the CPU; "" for others, which need no C++ compiler."""
    return vector_isa() if uses_cpu(graph) else ""


def uses_cpu(graph: Any) -> bool:
    """Whether the graph has a tensor on the CPU, or one of unknown device."""
    torch = sys.modules["torch"]
    modules = [module for module in graph.modules() if isinstance(module, torch.fx.GraphModule)]
    for node in (node for module in modules for node in module.graph.nodes if node.op != "output"):
        value = node.meta.get("val", node.meta.get("example_value", node))
        for leaf in torch.utils._pytree.tree_leaves(value):
            if leaf is node or (isinstance(leaf, torch.Tensor) and leaf.device.type == "cpu"):
                return True
    return False
