"""What the hooks on torch's caches ask of torch."""

from typing import Any

import pytest
import torch
import torch._functorch.config
import torch._inductor.config
import torch._inductor.config_comms

from warmstore.compiling.hooks.torch_hooks import _EXCHANGES, ranks_exchange_data

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
