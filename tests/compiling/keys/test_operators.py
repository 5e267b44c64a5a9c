"""Operators that a program adds in Python: an edited formula is never answered by what was compiled before."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from warnings import catch_warnings, simplefilter

import pytest
import torch
from tests.compiling.programs import Report, run
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import warmstore.compiling.keys.operators as operators

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
    assert [one for one in same.lookups if "the code of operator mine::sine has no identity" in str(one["reasons"])]
    assert used(tmp_path, "3.0", compile_).right


@torch.library.custom_op("ours::half", mutates_args=())
def half(x: torch.Tensor) -> torch.Tensor:
    return x[: len(x) // 2].clone()


@half.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return x.new_empty(len(x) // 2)


@pytest.fixture
def library() -> Iterator[torch.library.Library]:
    made = torch.library.Library("ours_too", "FRAGMENT")
    made.define("twice(Tensor x) -> Tensor")
    yield made
    made._destroy()


@torch.library.triton_op("ours::doubled", mutates_args=())
def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def graph_of(program: Callable[..., torch.Tensor]) -> Any:
    return make_fx(program)(torch.ones(4))


def test_what_the_program_has_made_an_operator_of_may_be_edited(library: torch.library.Library) -> None:
    library.impl("twice", lambda x: x * 2, "CPU")
    torch.library.register_fake("ours_too::twice", lambda x: torch.empty_like(x), lib=library)
    with FakeTensorMode():
        graph = graph_of(lambda x: half(torch.sin(torch.ops.ours_too.twice(x))))
    assert operators.foreign_operators(graph) == {"ours::half": "", "ours_too::twice": ""}
    assert operators.why_not_known(graph) == [
        "the code of operator ours::half has no identity", "the code of operator ours_too::twice has no identity"
    ]  # fmt: skip
    with FakeTensorMode():
        assert operators.why_not_known(graph_of(doubled)) == ["the code of operator ours::doubled has no identity"]
    assert operators.foreign_operators(graph_of(torch.sin)) == {}
    assert operators.why_not_known(graph_of(torch.sin)) == []
    assert operators.operators_text(graph_of(torch.sin)) == ""


def test_the_shapes_that_an_operator_says_tell_its_graph_from_others(
    library: torch.library.Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = graph_of(half)
    before = operators.operators_text(graph)
    assert before
    monkeypatch.setattr(half, "_abstract_fn", lambda x: x.new_empty(len(x) // 2 + 0))
    assert operators.operators_text(graph) not in (None, before)
    library.impl("twice", lambda x: x * 2, "CompositeExplicitAutograd")
    assert operators.operators_text(graph_of(lambda x: torch.ops.ours_too.twice(x))) is None


def test_torchs_own_operator_with_a_kernel_of_the_programs_is_not_torchs() -> None:
    library = torch.library.Library("aten", "IMPL")
    with catch_warnings():
        simplefilter("ignore")
        library.impl("special_zeta", lambda x, y: x, "CPU")
    try:
        assert operators.why_not_known(graph_of(torch.cos)) == [
            "the code of operator aten::special_zeta has no identity"
        ]
        assert operators.operators_text(graph_of(torch.cos)) is None
    finally:
        library._destroy()
    assert operators.why_not_known(graph_of(torch.cos)) == []


@pytest.mark.slow
def test_a_kernel_that_was_registered_again_is_seen(tmp_path: Path) -> None:
    """As where a module is loaded again: torch forgets it when what was registered first is gone."""
    code = """
    import gc, torch
    from torch.fx.experimental.proxy_tensor import make_fx
    from warmstore.compiling.keys.operators import why_not_known
    libraries = [torch.library.Library("aten", "IMPL") for _ in range(2)]
    for library in libraries:
        library.impl("selu", lambda x: x * 2, "CompositeImplicitAutograd")
    del libraries[0]
    gc.collect()
    assert not [one for one in torch.library._impls if one.startswith("aten/selu/")]
    found = why_not_known(make_fx(torch.cos)(torch.ones(2)))
    values, right = [found != ["the code of operator aten::selu has no identity"]], [False]
    """
    assert run(code, tmp_path / "store").right


def test_a_lowering_of_the_programs_is_seen_where_it_may_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch._inductor.lowering as lowering

    monkeypatch.setitem(lowering.lowerings, half._opoverload, lambda x: x)
    assert operators.why_not_known(graph_of(torch.cos)) == []
    assert "the program registers how ours::half is compiled" in operators.why_not_known(graph_of(half))
    monkeypatch.setitem(lowering.lowerings, torch.ops.aten.cos.default, lambda x: x)
    assert operators.why_not_known(graph_of(torch.sin)) == ["the program registers how aten::cos is compiled"]


def test_defaults_and_code_of_torchs_functions_count(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = torch.fx.symbolic_trace(torch.nn.Softsign())
    graph.graph.lint()
    assert torch.nn.functional.softsign in operators.targets_of(graph)
    before = operators.modules_text(graph)
    assert operators.why_not_known(graph) == []
    with monkeypatch.context() as patch:
        patch.setattr(torch.nn.functional.leaky_relu, "__defaults__", (0.5, False))
        assert operators.modules_text(graph) != before
    assert operators.modules_text(graph) == before
    monkeypatch.setattr(torch.nn.functional.softsign, "__code__", graph_of.__code__)
    assert operators.why_not_known(graph) == [
        "the program has changed functions of torch.nn.functional, and its graph calls softsign"
    ]
