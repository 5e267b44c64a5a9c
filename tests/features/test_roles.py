"""What arguments are, told once and remembered: a length that equals the batch's by accident changes nothing."""

import logging

import numpy as np
import pytest
import torch
from tests.slow import thinned
from torch import nn

import warmstore as ws

X = torch.arange(60, dtype=torch.float32).reshape(12, 5)  # 12 samples of 5 tokens
EYE = torch.eye(5).flip(0) * 3
CAUSAL = torch.ones(5, 5).tril()


class Called(nn.Module):
    """Calls a function, and remembers how many samples each call had."""

    def __init__(self, function):
        super().__init__()
        self.function = function
        self.rows = []

    def forward(self, *args, **kwargs):
        out = self.function(*args, **kwargs)
        self.rows.append(len(out))
        return out


@pytest.fixture
def wrapped(tmp_path):
    made = []

    def make(function, **options):
        module = ws.CachedModule(Called(function), ws.FeatureCache(tmp_path, "id"), **options)
        made.append(module)
        return module

    yield make
    for module in made:
        module.cache.close()


def mixed(x, mask):
    return x @ mask


def check(module, ids, *others, function=mixed, **named):
    """A call gives what the function gives for the whole batch, uncached."""
    ids = list(ids)
    got = module(X[ids], *others, **named, cache_ids=ids)
    assert torch.equal(got, function(X[ids], *others, **named))


class TestMask:
    """A mask [T, T] for all samples, and batches of T samples."""

    def test_last_batch_of_as_many(self, wrapped):
        module = wrapped(mixed)
        for _ in range(2):
            for ids in (range(7), range(7, 12), [0, 1, 2, 8, 9], range(5)):
                check(module, ids, CAUSAL)
        assert module.module.rows == [7, 5]

    def test_some_misses_in_a_batch_of_as_many(self, wrapped):
        module = wrapped(mixed)
        check(module, range(3), CAUSAL)
        check(module, range(5), CAUSAL)  # the mask is not cut to the two misses
        assert module.module.rows == [3, 2]

    def test_change_is_noticed_in_a_batch_of_as_many(self, wrapped):
        module = wrapped(mixed)
        check(module, range(7), CAUSAL)
        with pytest.raises(ws.StaleCache, match="argument"):
            module(X[:5], EYE, cache_ids=range(5))

    @pytest.mark.parametrize("named", [False, True])
    def test_first_batch_of_as_many_is_not_kept(self, wrapped, named, caplog):
        features = torch.rand(12, 5, 2)

        def function(x, mask):
            return mask @ x

        module = wrapped(function)

        def call(ids):
            ids = list(ids)
            given = {"mask": CAUSAL} if named else {}
            got = module(features[ids], *(() if named else (CAUSAL,)), **given, cache_ids=ids)
            torch.testing.assert_close(got, function(features[ids], CAUSAL))

        with caplog.at_level(logging.WARNING, "warmstore"):
            for _ in range(2):
                call(range(5))
            assert len(module.cache) == 0
            for _ in range(2):
                for ids in (range(3), range(3, 8), range(5)):
                    call(ids)
        assert module.module.rows == [5, 5, 3, 5]
        (record,) = caplog.records
        assert "batch_args" in record.getMessage()
        assert ("'mask'" if named else "argument 1") in record.getMessage()

    def test_the_cache_remembers(self, wrapped):
        for rows in ([7], [5]):
            module = wrapped(mixed)
            check(module, range(7), CAUSAL)
            module.cache.close()
            module = wrapped(mixed)  # as in another process, whose first batch is one of 5
            check(module, [7, 8, 9, 0, 1] if rows == [7] else [10, 0, 1, 2, 3], CAUSAL)
            module.cache.close()
            assert len(module.module.rows) == 1

    def test_told_by_name_and_by_path(self, wrapped):
        features = torch.rand(12, 5, 2)

        def function(batch, scale):
            return (batch["mask"] @ batch["x"]).sum(1) * scale[:, None]

        module = wrapped(function, batch_args=[(0, "x"), "scale"])
        scale = torch.arange(12.0)
        for ids in (range(5), [0, 1, 7, 8, 9], range(3)):
            ids = list(ids)
            batch = {"x": features[ids], "mask": CAUSAL}
            got = module(batch, scale=scale[ids], cache_ids=ids)
            torch.testing.assert_close(got, function(batch, scale[ids]))
        assert module.module.rows == [5, 3]

    def test_told_argument_of_another_length(self, wrapped):
        module = wrapped(mixed, batch_args=[0, 1])
        with pytest.raises(ws.BadIds, match="batch_args"):
            module(X[:3], CAUSAL, cache_ids=range(3))


class TestTokens:
    """All tensors of a tokeniser are [N, T], also where N is T: kept at the first batch, without a word."""

    @pytest.mark.parametrize("first", thinned(3, [1, 5, 3]))
    @pytest.mark.parametrize("form", ["keywords", "dict", "positions", "lists"])
    def test_as_many_as_samples(self, wrapped, first, form, caplog):
        tokens, mask = torch.randint(9, (12, 5)), torch.randint(2, (12, 5))

        def function(ids=None, mask=None):
            if isinstance(ids, dict):
                ids, mask = ids["input_ids"], ids["attention_mask"]
            return (torch.as_tensor(ids) * torch.as_tensor(mask)).sum(1, keepdim=True).float()

        module = wrapped(function)

        def call(ids):
            ids = list(ids)
            given = {"input_ids": tokens[ids], "attention_mask": mask[ids]}
            if form == "keywords":
                got = module(ids=tokens[ids], mask=mask[ids], cache_ids=ids)
            elif form == "dict":
                got = module({**given, "cache_ids": ids})
            elif form == "positions":
                got = module(tokens[ids], mask[ids], cache_ids=ids)
            else:
                got = module(tokens[ids].tolist(), mask[ids].tolist(), cache_ids=ids)
            assert torch.equal(got, function(tokens[ids], mask[ids]))

        call(range(first))
        for _ in range(2):
            call(range(first))
        assert module.module.rows == [first]
        for ids in (range(4), [7, 8, 0, 1, 2], range(5)):
            call(ids)
        assert sum(module.module.rows) == 7
        assert not caplog.records


class TestNotProven:
    """A part that fitted batches of one size only is not cut: the batch is computed whole, which is right anyway."""

    def table(self, x, table):
        return x + table.sum(0)

    def test_is_not_cut(self, wrapped):
        table = torch.rand(4, 5)
        module = wrapped(self.table)
        for ids in (range(4), [0, 1, 4, 5], [5, 4, 1, 1]):
            check(module, ids, table, function=self.table)
        assert module.module.rows == [4, 4]
        assert len(module.cache) == 6  # of a batch computed whole, what was not there is kept

    def test_another_length_is_an_error_that_says_what_to_do(self, wrapped):
        table = torch.rand(4, 5)
        module = wrapped(self.table)
        check(module, range(4), table, function=self.table)
        for ids in (range(3), range(4, 10)):
            with pytest.raises(ws.AmbiguousBatch, match=r"argument 1.*batch_args"):
                module(X[list(ids)], table, cache_ids=ids)
        assert module.module.rows == [4]

    def test_is_cut_once_another_size_fitted(self, wrapped):
        scale = torch.arange(12.0)
        module = wrapped(lambda x, scale: x * scale[:, None])

        def call(ids):
            assert torch.equal(module(X[ids], scale[ids], cache_ids=ids), X[ids] * scale[ids][:, None])

        call([0, 1, 2])
        call([0, 1, 3])  # whole
        call([0, 1, 2, 3, 4])
        call([0, 5, 6])
        assert module.module.rows == [3, 3, 1, 2]

    def test_first_tensor_that_may_be_a_table(self, wrapped):
        def function(table, x):
            return x * table.sum()

        table = torch.rand(4, 4)
        module = wrapped(function)
        for ids in ([0, 1, 2, 3], [4, 5, 0, 1], [3, 2, 1, 0]):
            assert torch.equal(module(table, X[ids], cache_ids=ids), function(table, X[ids]))
        with pytest.raises(ws.BadIds, match="batch_args"):
            module(table, X[:3], cache_ids=range(3))


SETTINGS = {
    "size": ([2, 3], [3, 2]),
    "three numbers": ([0.5, 0.25, 2.0], [0.5, 0.25, 4.0]),
    "matrix": ([[1, 2], [3, 4]], [[1, 2], [3, 5]]),
    "tensor of one": (torch.tensor([2.0]), torch.tensor([3.0])),
    "array of one": (np.array([2.0]), np.array([3.0])),
    "broadcast mask": (torch.ones(1, 1, 5), torch.zeros(1, 1, 5)),
    "matrix of a tensor": (torch.eye(4), torch.ones(4, 4)),
    "list of one": (["a"], ["b"]),
}


@pytest.mark.parametrize("form", thinned(4, ["position", "keyword", "dict"]))
@pytest.mark.parametrize("name", SETTINGS)
def test_settings_as_long_as_the_first_batch(wrapped, name, form, caplog):
    """They are no values of single samples: nothing is cut, and a change is noticed, after batches that do not tell."""
    setting, changed = SETTINGS[name]
    count = len(setting)

    def function(x, setting=None):
        if isinstance(x, dict):
            x, setting = x["x"], x["setting"]
        text = isinstance(setting, list) and isinstance(setting[0], str)
        return x + (ord(setting[0]) if text else torch.as_tensor(setting).sum())

    module = wrapped(function)

    def call(ids, setting):
        ids = list(ids)
        if form == "position":
            got = module(X[ids], setting, cache_ids=ids)
        elif form == "keyword":
            got = module(X[ids], setting=setting, cache_ids=ids)
        else:
            got = module({"x": X[ids], "setting": setting, "cache_ids": ids})
        assert torch.equal(got, function(X[ids], setting))

    for value in (setting, changed, setting):  # while nothing tells, nothing is kept
        call(range(count), value)
    assert len(module.cache) == 0
    assert len(caplog.records) == 1
    for _ in range(2):
        for ids in (range(7), range(count), [0, 8, 9, 10][:count], range(12)):
            call(ids, setting)
    assert sum(module.module.rows[3:]) == 12
    with pytest.raises(ws.StaleCache, match="argument"):
        call(range(count), changed)


def test_batches_of_one_with_more_than_the_input(wrapped, caplog):
    """They do not tell, and a batch of several does; then the others are kept as well."""
    scale = torch.arange(12.0)
    module = wrapped(lambda x, scale: x * scale[:, None])

    def call(ids):
        assert torch.equal(module(X[ids], scale[ids], cache_ids=ids), X[ids] * scale[ids][:, None])

    call([0])
    call([1])
    assert len(module.cache) == 0
    call([0, 1, 2])
    call([3])
    for ids in ([3], [0, 3], [3, 2, 1, 0]):
        call(ids)
    assert module.module.rows == [1, 1, 3, 1]
    assert len(caplog.records) == 1


def test_batches_of_one_of_named_arguments(wrapped, caplog):
    module = wrapped(lambda batch: batch["x"] * batch["scale"][:, None], batch_args=[0])
    for _ in range(2):
        for at in range(3):
            batch = {"x": X[at : at + 1], "scale": torch.tensor([at]), "names": [f"{at}"], "cache_ids": [at]}
            assert torch.equal(module(batch), X[at : at + 1] * at)
    assert module.module.rows == [1, 1, 1]
    assert not caplog.records


def test_wrong_ids_teach_nothing(wrapped):
    module = wrapped(lambda x, scale: x * scale[:, None])
    scale = torch.arange(12.0)
    with pytest.raises(ws.BadIds):
        module(X[:6], scale[:6], cache_ids=range(5))
    for ids in ([0, 1, 2], [0, 1, 2, 3], [5]):
        assert torch.equal(module(X[ids], scale[ids], cache_ids=ids), X[ids] * scale[ids][:, None])
    assert module.module.rows == [3, 1, 1]


def test_filling_ahead_with_batches_that_do_not_tell(wrapped):
    module = wrapped(mixed)
    loader = [(X[:5], CAUSAL[:, :5], range(5)), (X[5:9], CAUSAL, range(5, 9)), (X[:5], CAUSAL, range(5))]
    features = torch.rand(12, 5, 5)

    def call(batch):
        _, mask, ids = batch
        ids = list(ids)
        return (features[ids], mask), {"cache_ids": ids}

    done = module.cache.fill(module, loader, call=call)
    assert (done.computed, done.found) == (14, 0)
    assert len(module.cache) == 9
    assert module.cache.fill(module, loader, call=call).found == 14


def test_versions_of_modules_keep_their_own_arguments(tmp_path):
    """A second module under the same id may use the same position for something else."""
    with ws.FeatureCache(tmp_path, "id", versions="new") as cache:
        scale = torch.arange(12.0)
        ws.CachedModule(Called(lambda x, scale: x * scale[:, None]), cache)(X[:6], scale[:6], cache_ids=range(6))
    with ws.FeatureCache(tmp_path, "id", versions="new") as cache:
        module = ws.CachedModule(Called(mixed), cache)
        for ids in (range(3), range(5), range(6)):
            check(module, ids, CAUSAL)
