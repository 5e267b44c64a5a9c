"""What modules are fed with: texts, tokens, masks, dicts and mappings, ids in every place. All sliced to the misses."""

from collections import UserDict
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from tests.slow import thinned
from torch import nn

import warmstore as ws

TEXTS = ["a", "bb", "ccc", "dddd", "eeeee", "ffffff"]


def wrap(folder, function, **options):
    """A module of a function, that remembers how many samples came, and a weight that says where it is."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("weight", torch.ones(1))
            self.seen = []

        def forward(self, *args, **kwargs):
            out = function(*args, **kwargs)
            self.seen.append(len(out))
            return out

    return ws.CachedModule(Model(), ws.FeatureCache(folder, "id"), **options)


class Named(nn.Module):
    """A module whose argument has a name, by which it is the same as by its position."""

    def __init__(self, function):
        super().__init__()
        self.function = function
        self.seen = []

    def forward(self, batch):
        out = self.function(batch)
        self.seen.append(len(out))
        return out


def lengths(texts):
    return torch.tensor([len(text) for text in texts])


class TestTexts:
    @pytest.mark.parametrize("kind", [list, tuple])
    @pytest.mark.parametrize("keyword", [False, True])
    def test_as_the_only_input(self, tmp_path, kind, keyword):
        module = wrap(tmp_path, lambda texts: lengths(texts))

        def call(which):
            texts = kind(TEXTS[at] for at in which)
            return module(texts=texts, cache_ids=which) if keyword else module(texts, cache_ids=which)

        assert call([4, 1]).tolist() == [5, 2]
        assert call(range(6)).tolist() == [1, 2, 3, 4, 5, 6]
        assert module.module.seen == [2, 4]

    def test_their_own_ids(self, tmp_path):
        module = wrap(tmp_path, lambda texts: lengths(texts), key_from_batch=lambda texts: texts)
        module(TEXTS[:3])
        assert module(TEXTS[::-1]).tolist() == [6, 5, 4, 3, 2, 1]
        assert module.module.seen == [3, 3]

    def test_beside_a_prompt_for_all(self, tmp_path):
        module = wrap(tmp_path, lambda texts, prompt: lengths(texts) + len(prompt))
        module(TEXTS[:2], "??", cache_ids=range(2))
        assert module(TEXTS, "??", cache_ids=range(6)).tolist() == [3, 4, 5, 6, 7, 8]
        with pytest.raises(ws.StaleCache, match="`argument "):
            module(TEXTS, "???", cache_ids=range(6))

    @pytest.mark.parametrize("kind", [list, tuple])
    def test_more_or_fewer_than_ids(self, tmp_path, kind):
        module = wrap(tmp_path, lambda texts: lengths(texts))
        with pytest.raises(ws.BadIds, match="5 cache_ids for 6 samples"):
            module(kind(TEXTS), cache_ids=range(5))
        assert module.module.seen == []

    def test_that_are_settings(self, tmp_path):
        """Names of layers, say: where there is a tensor, it is the input."""
        for kind in (tuple, list):
            module = wrap(tmp_path / kind.__name__, lambda layers, x: x * len(layers))
            for _ in range(2):
                assert module(kind("ab"), torch.ones(3), cache_ids=range(3)).tolist() == [2, 2, 2]
            assert module.module.seen == [3]

    def test_hits_are_where_the_module_is(self, tmp_path):
        """Texts are on no device."""
        module = wrap(tmp_path, lambda texts: lengths(texts))
        module(TEXTS, cache_ids=range(6))
        twin = ws.CachedModule(module.module.to("meta"), module.cache)
        twin._bind = lambda *arguments: module.cache._session  # meta tensors have no bytes to hash
        assert twin(TEXTS, cache_ids=range(6)).device.type == "meta"


class TestTokens:
    def model(self, input_ids, attention_mask=None, position_ids=None):
        mask = torch.as_tensor(attention_mask)
        return (torch.as_tensor(input_ids) * mask).sum(1) + (0 if position_ids is None else position_ids.sum())

    def test_dict_of_tensors_and_one_for_all(self, tmp_path):
        module = wrap(tmp_path, self.model)
        tokens, mask, positions = torch.randint(9, (6, 4)), torch.randint(2, (6, 4)), torch.arange(4)
        expected = self.model(tokens, mask, positions)
        for which in ([5, 0], range(6)):
            which = list(which)
            batch = {"input_ids": tokens[which], "attention_mask": mask[which], "position_ids": positions}
            assert torch.equal(module(**batch, cache_ids=which), expected[which])
        assert module.module.seen == [2, 4]

    def test_lists_of_lists(self, tmp_path):
        model = Named(lambda input_ids: torch.tensor([sum(tokens) for tokens in input_ids]))
        module = ws.CachedModule(model, ws.FeatureCache(tmp_path, "id"))
        tokens = [[1], [2, 3], [4], [5, 6, 7]]
        module(tokens[:2], cache_ids=[0, 1])
        assert module(batch=tokens, cache_ids=range(4)).tolist() == [1, 5, 4, 18]
        assert module.module.seen == [2, 2]

    def test_mask_for_pairs_and_numpy(self, tmp_path):
        module = wrap(tmp_path, lambda x, mask, more: (x * mask).sum((1, 2)) + torch.from_numpy(more["scale"]))
        x, mask, scale = torch.rand(6, 4, 4), torch.rand(6, 4, 4) > 0.5, np.random.default_rng(0).random(6, np.float32)
        expected = (x * mask).sum((1, 2)) + torch.from_numpy(scale)
        for which in ([3, 2], list(range(6))):
            got = module(x[which], mask=mask[which], more={"scale": scale[which]}, cache_ids=which)
            torch.testing.assert_close(got, expected[which], rtol=0, atol=1e-6)
        assert module.module.seen == [2, 4]


class Pair(NamedTuple):
    query: dict[str, Any]
    passages: tuple[torch.Tensor, list[str]]


def test_pairs_of_queries_and_passages(tmp_path):
    """Named tuples of dicts of tensors, lists of lists of tokens and of texts, a tensor by keyword, and one for all."""

    def score(pair, scale=None, table=None):
        assert isinstance(pair, Pair)
        tokens = torch.tensor([float(sum(row)) for row in pair.query["tokens"]])
        texts = lengths(pair.query["texts"]) * lengths(pair.passages[1])
        return ((tokens + texts)[:, None] + pair.passages[0] * scale[:, None]) @ table

    x, scale, table = torch.rand(6, 5), torch.rand(6), torch.rand(5, 2)
    tokens = [[1], [2, 3], [], [4, 5, 6], [7], [8, 9]]

    def arguments(which):
        texts = [TEXTS[at] for at in which]
        query = {"tokens": [tokens[at] for at in which], "texts": texts}
        return (Pair(query, (x[which], texts[::-1])),), {"scale": scale[which], "table": table}

    module = wrap(tmp_path, score)
    one_by_one = {}
    for which in ([5, 0], [1, 0, 5, 2], [0, 5]):
        args, kwargs = arguments(which)
        got = module(*args, **kwargs, cache_ids=which)
        for at, row, right in zip(which, got, score(*args, **kwargs), strict=True):
            torch.testing.assert_close(row, one_by_one.setdefault(at, right), rtol=0, atol=1e-5)
    assert module.module.seen == [2, 2, 1]  # a second look at a matrix [2, 2]


@dataclass
class Batch:
    x: torch.Tensor


def test_objects_of_ones_own_are_an_error_and_nothing_wrong(tmp_path):
    """They are not looked into: neither cut to the misses nor taken for the same."""
    module = wrap(tmp_path, lambda batch: batch.x * 2)
    x = torch.rand(4, 2)
    module(Batch(x[:2]), cache_ids=[0, 1])
    with pytest.raises(ws.StaleCache, match="`argument "):
        module(Batch(x), cache_ids=range(4))
    assert len(module.cache) == 2


class Encoding(UserDict):
    """What tokenisers return: a mapping, with attributes and a method, that is no dict."""

    def __getattr__(self, name):
        if name == "data":
            raise AttributeError(name)
        return self.data[name]

    def total(self):
        return self.input_ids.sum(1)


class TestMappings:
    def batch(self, which):
        tokens = torch.arange(24).reshape(6, 4)[which]
        return Encoding(input_ids=tokens, cache_ids=torch.tensor(which))

    def test_that_are_no_dicts(self, tmp_path):
        module = ws.CachedModule(Named(lambda batch: batch.total()), ws.FeatureCache(tmp_path, "id"))
        module(self.batch([4, 2]))
        assert torch.equal(module(batch=self.batch(list(range(6)))), torch.arange(24).reshape(6, 4).sum(1))
        assert module.module.seen == [2, 4]

    def test_fewer_ids(self, tmp_path):
        module = wrap(tmp_path, lambda batch: batch.total())
        with pytest.raises(ws.BadIds, match="one id per sample"):
            module(self.batch([1, 2]), cache_ids=[1])

    def test_settings_in_them_are_watched(self, tmp_path):
        module = wrap(tmp_path, lambda batch: batch["input_ids"].sum(1) * batch["scale"])
        module(self.batch([1, 2]) | {"scale": 2})
        with pytest.raises(ws.StaleCache, match="`argument "):
            module(self.batch([1, 2]) | {"scale": 3})


class TestIds:
    @pytest.mark.parametrize(
        "kind", thinned(2, [list, tuple, np.array, torch.tensor, lambda ids: torch.tensor(ids).int()])
    )
    def test_in_every_place(self, tmp_path, kind):
        x = torch.rand(4, 2)
        ids = [3, 1, 2, 0]
        by_keyword = wrap(tmp_path, lambda x: x * 2)
        in_dict = wrap(tmp_path, lambda batch: batch["x"] * 2)
        by_function = wrap(tmp_path, lambda x, info: x * 2, key_from_batch=lambda x, info: info["index"])
        for cache in (in_dict.cache, by_function.cache):
            # Three modules; what counts here is what they call a sample.
            cache._session.version.check_fingerprint = lambda known, given: None
        by_keyword(x, cache_ids=kind(ids))
        by_keyword.cache.flush()
        assert torch.equal(in_dict({"x": x, "cache_ids": kind(ids)}), x * 2)
        assert torch.equal(by_function(x, info={"index": kind(ids)}), x * 2)
        assert (in_dict.module.seen, by_function.module.seen) == ([], [])

    def test_of_the_keyword_come_first(self, tmp_path):
        module = wrap(tmp_path, lambda batch: batch["x"], key_from_batch=lambda batch: batch["names"])
        x = torch.rand(2)
        batch = {"x": x, "names": ["a", "b"], "cache_ids": [1, 2]}
        for ids in ({}, {"cache_ids": [3, 4]}):
            module(batch, **ids)
        for ids, there in ((["a", "b"], True), ([3, 4], True), ([1, 2], False)):
            assert (module.cache.get_batch(ids)[0] is not None) == there
