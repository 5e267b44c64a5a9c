"""Operators that a program adds in Python: an edited formula is never answered by what was compiled before."""

import os
from pathlib import Path

import pytest
import torch
from tests.compiling.programs import Report, run
from torch.fx.experimental.proxy_tensor import make_fx

import warmstore.compiling.operators as operators

PROGRAM = """
import torch


@torch.library.custom_op("mine::sine", mutates_args=())
def sine(x: torch.Tensor) -> torch.Tensor:
    return torch.sin(x)


@sine.register_fake
def _(x):
    return torch.empty_like(x)


def setup(ctx, inputs, output):
    ctx.save_for_backward(inputs[0])


def backward(ctx, grad):
    (x,) = ctx.saved_tensors
    return grad * torch.cos(x) * 1.0


sine.register_autograd(backward, setup_context=setup)


def f(x):
    return sine(x) * 2


def gradient(function):
    x = torch.arange(64.0, requires_grad=True)
    function(x).sum().backward()
    return x.grad
"""


def used(folder: Path, factor: str, compile_: str) -> Report:
    (folder / "program.py").write_text(PROGRAM.replace("1.0\n\n", f"{factor}\n\n"))
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    code = f"""
    import torch
    from program import f, gradient
    values, right = gradient({compile_}(f)), gradient(f)
    """
    return run(code, folder / "store", env={"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"})


@pytest.mark.slow
@pytest.mark.parametrize("compile_", ["torch.compile", "ws.compile"])
def test_an_edited_gradient_is_seen(compile_: str, tmp_path: Path) -> None:
    assert used(tmp_path, "1.0", compile_).right
    same = used(tmp_path, "1.0", compile_)
    assert same.right
    assert same.inductor["fxgraph_cache_hit"] == 2
    assert [one for one in same.lookups if "mine::sine may have been edited" in str(one["reasons"])]
    assert used(tmp_path, "3.0", compile_).right


def test_operators_of_a_graph() -> None:
    library = torch.library.Library("ours", "DEF")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: x * 2, "CompositeExplicitAutograd")

    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.sin(torch.ops.ours.twice(x))

    assert operators.python_operators(make_fx(program)(torch.ones(2))) == ["ours::twice"]
    assert operators.python_operators(make_fx(torch.sin)(torch.ones(2))) == []
