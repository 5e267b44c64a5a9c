"""What the hooks on torch's caches ask of torch."""

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch._functorch.config
import torch._inductor.config
import torch._inductor.config_comms

from warmstore.compiling.hooks.torch_hooks import _EXCHANGES, TorchHooks, _with_modules, ranks_exchange_data

OPTIONS = [(name, option) for name, options in _EXCHANGES.items() for option in options]


@pytest.mark.parametrize(("name", "option"), OPTIONS)
def test_ranks_that_exchange_data_while_torch_compiles_do_not_wait_for_each_other(
    monkeypatch: pytest.MonkeyPatch, name: str, option: str
) -> None:
    config: Any = {"config": torch._inductor.config, "config_comms": torch._inductor.config_comms}
    config = torch._functorch.config if "functorch" in name else config[name.rpartition(".")[2]]
    with config.patch({option: True}):
        assert not ranks_exchange_data()
        monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
        assert ranks_exchange_data()
        monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 1)
        assert not ranks_exchange_data()
        monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    assert not ranks_exchange_data()


@pytest.mark.parametrize("switch", ["mkldnn.enabled", "cudnn.allow_tf32", "cudnn.deterministic"])
def test_keys_of_graphs_have_the_switches_of_torch(monkeypatch: pytest.MonkeyPatch, switch: str) -> None:
    graph = torch.fx.symbolic_trace(torch.nn.ReLU())
    for node in graph.graph.nodes:
        node.meta["val"] = torch.ones(2, device="meta")
    listener: Any = None

    def keys() -> list[str]:
        (key, lines), _ = TorchHooks(listener)._prepare_key(lambda gm: (("fkey", []), {}), graph)
        with _with_modules(graph):
            return [key, str(lines), str(torch._inductor.config.unsafe_marked_cacheable_functions)]

    before = keys()
    assert keys() == before
    holder, name = switch.split(".")
    module = getattr(torch.backends, holder)
    monkeypatch.setattr(module, name, not getattr(module, name))
    assert all(map(str.__ne__, keys(), before))
    monkeypatch.undo()
    monkeypatch.setattr(torch._tensor_str.PRINT_OPTS, "precision", 9)  # decides no kernel
    assert keys() == before


@pytest.mark.parametrize("loads", [True, False])
def test_a_library_that_cannot_be_loaded_here_is_compiled(tmp_path: Path, loads: bool) -> None:
    whole = next(Path(threading.__file__).parent.glob("lib-dynload/_heapq*.so")).read_bytes()
    library, refused = tmp_path / "cab.main.so", []

    def wanted(path: str, *, alone: bool) -> bool:
        return bool(library.write_bytes(whole if loads else b"of another machine"))

    listener: Any = SimpleNamespace(
        inside=lambda path: Path(path).name,
        describe=lambda path, make: None,
        wanted=wanted,
        refused=lambda path, reason: refused.append((path, reason)),
    )
    source = str(library.with_suffix(".cpp"))
    written = TorchHooks(listener)._write([], lambda content, extension, extra: ("cab", source), "code", "main.cpp")
    assert written == ("cab", source)
    assert library.exists() == loads
    assert [path for path, reason in refused if "it cannot be loaded here" in reason] == [library.name][loads:]
