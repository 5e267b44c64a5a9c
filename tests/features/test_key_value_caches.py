"""Outputs with the key-value caches of transformers, and `select`, which leaves them out."""

from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

import warmstore as ws


@pytest.fixture(scope="module")
def model() -> Any:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        n_layer=2, n_head=2, n_embd=8, vocab_size=32, n_positions=16, bos_token_id=0, eos_token_id=0
    )
    torch.manual_seed(0)
    return transformers.GPT2Model(config).eval().requires_grad_(False)


TOKENS = torch.arange(15).reshape(3, 5)


def test_a_key_value_cache_is_explained_and_each_remedy_works_in_the_same_program(model: Any, tmp_path: Path) -> None:
    expected = model(TOKENS).last_hidden_state
    with ws.FeatureCache(tmp_path, "gpt2") as cache:
        module = ws.CachedModule(model, cache)
        for _ in range(2):
            with pytest.raises(
                ws.UnsupportedType, match=r"past_key_values is a DynamicCache.*use_cache=False.*select="
            ):
                module(TOKENS, cache_ids=range(3))
        for _ in range(2):
            output = module(TOKENS, cache_ids=range(3), use_cache=False)
            assert torch.equal(output.last_hidden_state, expected)
        assert cache.stats().misses == 9
        with pytest.raises(ws.StaleCache):  # what was stored is bound
            module(TOKENS, cache_ids=range(3))
    with ws.FeatureCache(tmp_path, "selected") as cache:
        module = ws.CachedModule(model, cache)
        with pytest.raises(ws.UnsupportedType):
            module(TOKENS, cache_ids=range(3))
        module = ws.CachedModule(model, cache, select="last_hidden_state")
        for _ in range(2):
            assert torch.equal(module(TOKENS, cache_ids=range(3)), expected)


class Out(NamedTuple):
    a: Any
    b: Any


class Parts(torch.nn.Module):
    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, x: Any) -> Any:
        return self.kind(a=x + 1, b=x * 2)


class TestSelect:
    @pytest.mark.parametrize("kind", [dict, Out])
    def test_one_part_or_several(self, tmp_path: Path, kind: Any) -> None:
        x = torch.rand(2, 3)
        with ws.FeatureCache(tmp_path, "one") as one, ws.FeatureCache(tmp_path, "two") as two:
            first, both = (
                ws.CachedModule(Parts(kind), one, select="b"),
                ws.CachedModule(Parts(kind), two, select=["b", "a"]),
            )
            for _ in range(2):
                assert torch.equal(first(x, cache_ids=[0, 1]), x * 2)
                found = both(x, cache_ids=[0, 1])
                assert list(found) == ["b", "a"]
                assert torch.equal(found["a"], x + 1)
            assert one.stats().misses == two.stats().misses == 2
            off = ws.CachedModule(Parts(kind), one, select="b", enabled=False)
            assert torch.equal(off(x), x * 2)

    def test_another_selection_is_another_computation(self, tmp_path: Path) -> None:
        x = torch.rand(2, 3)
        with ws.FeatureCache(tmp_path, "id") as cache:
            ws.CachedModule(Parts(dict), cache, select="a")(x, cache_ids=[0, 1])
            for select in ("b", ["a"], None):
                with pytest.raises(ws.StaleCache, match="select"):
                    ws.CachedModule(Parts(dict), cache, select=select)(x, cache_ids=[0, 1])

    def test_what_is_not_there(self, tmp_path: Path) -> None:
        with ws.FeatureCache(tmp_path, "id") as cache:
            for kind in (dict, Out):
                module = ws.CachedModule(Parts(kind), cache, select="c")
                with pytest.raises(ws.SchemaMismatch, match=r"has no part 'c' to select; it has \['a', 'b'\]"):
                    module(torch.rand(2, 3), cache_ids=[0, 1])
            for select in ("", [], [1]):
                with pytest.raises(ValueError, match="select is"):
                    ws.CachedModule(Parts(dict), cache, select=select)
