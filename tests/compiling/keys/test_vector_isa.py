"""The vector instructions in keys: of graphs on the CPU alone, and without an error where there is no compiler."""

from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from warmstore.compiling.keys.vector_isa import uses_cpu, vector_isa, vector_isa_of


def graph_on(device: str) -> torch.fx.GraphModule:
    with FakeTensorMode():
        return make_fx(lambda x: torch.sin(x) * 2)(torch.empty(4, device=device))


def test_only_graphs_with_tensors_on_the_cpu_have_them(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch._inductor.cpu_vec_isa as inductor

    monkeypatch.setattr(inductor, "pick_vec_isa", lambda: inductor.VecAVX2())
    assert vector_isa_of(graph_on("cpu")) == "avx2 256 -mavx2 -mfma -mf16c"
    assert vector_isa_of(graph_on("meta")) == ""
    without_devices = graph_on("meta")
    for node in without_devices.graph.nodes:
        node.meta.clear()
    assert uses_cpu(without_devices)


def test_without_a_compiler_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch._inductor.cpu_vec_isa as inductor

    def missing() -> Any:
        raise RuntimeError("No working C++ compiler found")

    monkeypatch.setattr(inductor, "pick_vec_isa", missing)
    assert vector_isa() == "none"
