"""Where samples lie in outputs: filled in batches of one size, read in others, equal to the uncached module."""

import logging
import re
from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from tests.features.outputs.test_output_structure import same
from tests.slow import thinned
from torch import nn

import warmstore as ws

State = namedtuple("State", ["output", "hidden"])


@dataclass
class Both:
    hidden: torch.Tensor
    cell: torch.Tensor


class Recurrent(nn.Module):
    """Shaped as an LSTM with batch_first, of whole numbers: its bits do not depend on the batch.

    [N, T, 4] -> (output [N, T, 4], (h [L, N, 4], c [L, N, 4])).
    """

    def __init__(self, layers=1):
        super().__init__()
        self.layers = layers
        self.rows = []

    def forward(self, x):
        self.rows.append(len(x))
        state, steps = torch.zeros_like(x[:, 0]), []
        for step in x.unbind(1):
            state = (state * 3 + step) % 31
            steps.append(state)
        hidden = torch.stack([state + layer for layer in range(self.layers)])
        return torch.stack(steps, dim=1), (hidden, hidden * 2)


X = torch.randint(31, (6, 5, 4), generator=torch.Generator().manual_seed(1)).float()
LSTM_DIMS = (0, (1, 1))


def state_of(function, out):
    output, (hidden, cell) = out
    return function(output, hidden, cell)


STRUCTURES = {
    "lstm": (lambda o, h, c: (o, (h, c)), (0, (1, 1))),
    "prefix": (lambda o, h, c: (o, (h, c)), (0, 1)),
    "lists": (lambda o, h, c: [o, [h, c]], [0, [1, 1]]),
    "negative": (lambda o, h, c: (o, (h, c)), (-3, -2)),
    "one int": (lambda o, h, c: {"h": h, "c": (c, [h])}, 1),
    "last dimension": (lambda o, h, c: o.permute(1, 2, 0), 2),
    "dict": (lambda o, h, c: {"o": o, "h": h, 3: c}, {"o": 0, "h": 1, 3: 1}),
    "dict with a part left out": (lambda o, h, c: {"o": o, "h": h}, {"h": 1}),
    "namedtuple": (lambda o, h, c: State(o, h), (0, 1)),
    "namedtuple by name": (lambda o, h, c: State(o, h), {"output": 0, "hidden": 1}),
    "dataclass": (lambda o, h, c: {"x": Both(h, c)}, {"x": {"hidden": 1, "cell": 1}}),
    "constants": (lambda o, h, c: (o, None, "text", h, 3), (0, None, None, 1, 0)),
    "arrays": (lambda o, h, c: (o.numpy(), h.numpy()), (0, 1)),
    "half": (lambda o, h, c: (o.bfloat16(), h.half(), h > 0), (0, 1, 1)),
    "time major": (lambda o, h, c: o.transpose(0, 1), 1),
    "per sample": (lambda o, h, c: {"each": [one[: 1 + int(one[0, 0] % 2)] for one in o], "h": h}, {"h": 1}),
    "constant tensor": (
        lambda o, h, c: (o, torch.arange(12.0).reshape(1, 3, 4), h, np.eye(2)),
        (0, None, 1, None),
    ),
}


class Shaped(Recurrent):
    def __init__(self, shape):
        super().__init__()
        self.shape = shape

    def forward(self, x):
        return state_of(self.shape, super().forward(x))


def wrapped(folder, module, out_dims=None, **options):
    return ws.CachedModule(module, ws.FeatureCache(folder, "id", **options), out_dims=out_dims, enforce_stateless=False)


@pytest.mark.parametrize("first", [1, 3])
@pytest.mark.parametrize("name", thinned(4, STRUCTURES))
def test_every_batch_is_as_the_module_gives_it(tmp_path, name, first):
    """Hits, misses and both, of every batch size, in any order, with ids that come twice; waiting, stored, reopened."""
    shape, out_dims = STRUCTURES[name]
    options = {"lists": "per_sample"} if name == "per sample" else {"lists": "structure"}
    module = wrapped(tmp_path, Shaped(shape), out_dims, **options)
    plain = Shaped(shape)

    def check(ids):
        same(module(X[ids], cache_ids=ids), plain(X[ids]))

    check(list(range(first)))
    for _ in range(2):
        for size in range(1, 6):
            check(list(range(size)))
            check(list(range(size))[::-1])
        check([5, 0, 5, 5, 2])
        check([3, 3])
        module.cache.flush()
    assert sum(module.module.rows) == 6
    module.cache.close()

    module = wrapped(tmp_path, Shaped(shape), out_dims, **options)
    for size in range(1, 7):
        check(list(range(size)))
    check([5, 0, 5, 5, 2])
    assert module.module.rows == []


def test_hits_are_contiguous_and_writable(tmp_path):
    module = wrapped(tmp_path, Shaped(lambda o, h, c: (h, o.permute(1, 2, 0))), (1, 2))
    for _ in range(3):
        for tensor in module(X, cache_ids=range(6)):
            assert tensor.is_contiguous()
            tensor.zero_()
        module.cache.flush()
    same(module(X, cache_ids=range(6))[0], Recurrent()(X)[1][0])


def test_misses_beside_hits_of_other_lengths(tmp_path):
    """The dimension of the samples is fixed; others may vary, before and after the commit."""
    module = wrapped(tmp_path, Shaped(lambda o, h, c: o.transpose(0, 1)), 1, variable=True, pad_value=-1.0)
    plain = Recurrent()
    module(X[:2, :3], cache_ids=[0, 1])
    for _ in range(2):
        out = module(X, cache_ids=range(6))
        assert out.shape == (5, 6, 4)
        same(out[:, 2:].contiguous(), plain(X)[0].transpose(0, 1)[:, 2:].contiguous())
        assert out[3:, :2].eq(-1).all()
        module.cache.flush()


def test_hot_tier(tmp_path):
    module = wrapped(tmp_path, Recurrent(), LSTM_DIMS, hot_size="1MB")
    expected = Recurrent()(X)
    for _ in range(4):
        same(module(X, cache_ids=range(6)), expected)
        module.cache.flush()
    assert module.cache.stats().hot_hits > 0


def test_get_and_put_by_hand_use_the_dimensions_of_the_cache(tmp_path):
    module = wrapped(tmp_path, Recurrent(), LSTM_DIMS)
    module(X[:2], cache_ids=[0, 1])
    for _ in range(2):
        module.cache.put_batch([2, 3, 4], Recurrent()(X[2:5]))
        found, missing = module.cache.get_batch([4, 0, 9, 2])
        assert missing.tolist() == [2]
        same(found, Recurrent()(X[[4, 0, 2]]))
        module.cache.flush()


def test_dimensions_of_the_cache_count_where_none_are_told(tmp_path):
    wrapped(tmp_path, Recurrent(), LSTM_DIMS)(X[:2], cache_ids=[0, 1])
    for ids in ([0, 1], [0, 1, 2, 3], [4]):
        module = wrapped(tmp_path, Recurrent())
        same(module(X[ids], cache_ids=ids), Recurrent()(X[ids]))
        module.cache.close()


class TestOtherDimensions:
    """A cache that was filled with other dimensions than told is refused, for hits too."""

    @pytest.mark.parametrize("filled", [None, 0, (0, 0)])
    @pytest.mark.parametrize("flushed", [False, True])
    def test_than_the_cache_was_filled_with(self, tmp_path, filled, flushed):
        square = Shaped(lambda o, h, c: (o[:2, :2], o[:2, :2] + 1))
        module = wrapped(tmp_path, square, filled)
        module(X[:2], cache_ids=[0, 1])
        if flushed:
            module.cache.close()
            other = wrapped(tmp_path, square, (0, 1))
        else:
            other = ws.CachedModule(square, module.cache, out_dims=(0, 1), enforce_stateless=False)
        with pytest.raises(ws.SchemaMismatch, match="out_dims"):
            other(X[:2], cache_ids=[0, 1])

    @pytest.mark.parametrize("told", [0, None, (0, 0, None)])
    def test_constant_that_was_none(self, tmp_path, told):
        module = Shaped(lambda o, h, c: (o, o + 1, torch.ones(3)))
        wrapped(tmp_path, module, (0, 0, None)).cache.close()
        cached = wrapped(tmp_path, module, (0, 0, None))
        cached(X[:3], cache_ids=[0, 1, 2])
        cached.cache.close()
        cached = wrapped(tmp_path, module, told)
        if told == 0:
            with pytest.raises(ws.SchemaMismatch, match="out_dims"):
                cached(X[:3], cache_ids=[0, 1, 2])
        else:
            same(cached(X[:2], cache_ids=[0, 1]), module(X[:2]))


class TestConstants:
    def test_that_change_are_refused(self, tmp_path):
        module = wrapped(tmp_path, Shaped(lambda o, h, c: (o, o.mean().reshape(1))), (0, None))
        module(X[:3], cache_ids=[0, 1, 2])
        with pytest.raises(ws.SchemaMismatch, match="out_dims"):
            module(X[3:], cache_ids=[3, 4, 5])
        assert module.cache.get_batch(range(6))[1].tolist() == [3, 4, 5]

    def test_do_not_alias(self, tmp_path):
        table = torch.ones(2, 2)
        module = wrapped(tmp_path, Shaped(lambda o, h, c: (o, table)), (0, None))
        for _ in range(3):
            module(X, cache_ids=range(6))[1].zero_()
            same(module(X, cache_ids=range(6))[1], torch.ones(2, 2))
            table.fill_(1)

    def test_of_many_bytes_are_refused(self, tmp_path):
        module = wrapped(tmp_path, Shaped(lambda o, h, c: (o, torch.ones(1 << 19))), (0, None))
        with pytest.raises(ws.UnsupportedType, match="same for all samples"):
            module(X, cache_ids=range(6))

    def test_nothing_else(self, tmp_path):
        module = wrapped(tmp_path, Shaped(lambda o, h, c: (torch.ones(2), 3)), (None, None))
        with pytest.raises(ws.SchemaMismatch, match="nothing with one value per sample"):
            module(X, cache_ids=range(6))


class TestDoNotFit:
    @pytest.mark.parametrize("out_dims", ["0", True, (0, 1.0), {"a": {1}}, [0, [True]], torch.tensor(0)])
    def test_no_pytree_of_ints(self, tmp_path, out_dims):
        with pytest.raises(ValueError, match="out_dims"):
            wrapped(tmp_path, Recurrent(), out_dims)

    @pytest.mark.parametrize(
        "out_dims",
        thinned(
            3,
            map(
                pytest.param,
                [(0,), (0, 1, 1), ((0, 0), 1), (0, (1,)), {"output": 0}, 1, (0, 0), (0, 3), (-4, 1), (0, {"h": 1})],
            ),
        ),
    )
    def test_another_structure_or_dimension(self, tmp_path, out_dims):
        module = wrapped(tmp_path, Recurrent(), out_dims)
        with pytest.raises(ws.SchemaMismatch):
            module(X[:3], cache_ids=[0, 1, 2])
        assert len(module.cache) == 0

    def test_sequence_for_a_dict(self, tmp_path):
        module = wrapped(tmp_path, Shaped(lambda o, h, c: {"o": o, "h": h}), (0, 1))
        with pytest.raises(ws.SchemaMismatch, match="dict"):
            module(X[:3], cache_ids=[0, 1, 2])


NOT_FIRST = {
    "lstm": Recurrent,
    "two layers": lambda: Recurrent(layers=2),
    "three layers": lambda: Recurrent(layers=3),
    "time major": lambda: Shaped(lambda o, h, c: o.transpose(0, 1)),
    "states alone": lambda: Shaped(lambda o, h, c: {"h": h}),
    "states in a list": lambda: Shaped(lambda o, h, c: [h, c, h]),
    "constant": lambda: Shaped(lambda o, h, c: (o, torch.arange(3.0).reshape(1, 3))),
    "constant of three rows": lambda: Shaped(lambda o, h, c: (o, torch.arange(9.0).reshape(3, 3))),
    "temperature": lambda: Shaped(lambda o, h, c: {"logits": o[:, 0], "temperature": torch.ones(1)}),
    "unbound": lambda: Shaped(lambda o, h, c: o.unbind(0)),
    "pairs": lambda: Shaped(lambda o, h, c: {"o": o, "distances": (o[:, None, 0] - o[None, :, 0]).sum(2)}),
}


@pytest.mark.parametrize(
    "sizes",
    [
        (1, 3),
        (1, 1, 2),
        (5, 3, 1),
        *(pytest.param(sizes, marks=pytest.mark.slow) for sizes in [(3, 1, 3), (2, 4), (1, 1, 1)]),
    ],
)
@pytest.mark.parametrize("name", thinned(9, NOT_FIRST))
def test_untold_dimensions_are_never_guessed(tmp_path, name, sizes):
    """Whatever the sizes of batches are: outputs are those of the module, or an error names `out_dims`."""
    make = NOT_FIRST[name]
    plain = make()
    for _ in range(2):
        module = wrapped(tmp_path, make())
        for size in (*sizes, *sizes):
            for ids in (list(range(size)), list(range(size))[::-1]):
                refused = ""
                try:
                    out = module(X[ids], cache_ids=ids)
                except (ws.SchemaMismatch, ws.AmbiguousBatch) as error:
                    refused = str(error)
                if refused:
                    assert re.search("out_dims|lists=", refused)
                else:
                    same(out, plain(X[ids]))
        module.cache.close()


class TestConstantsOfAsManyRows:
    """A part that happens to have one row for each sample, and is the same in every batch."""

    @pytest.mark.parametrize("kind", ["parameter", "buffer", "view"])
    def test_that_are_the_modules_own(self, tmp_path, kind, caplog):
        class Quantiser(Recurrent):
            def __init__(self):
                super().__init__()
                self.book = nn.Parameter(torch.arange(12.0).reshape(3, 4), requires_grad=False)
                self.register_buffer("anchors", torch.ones(3, 2))

            def forward(self, x):
                part = {"parameter": self.book, "buffer": self.anchors, "view": self.book[:, 1:]}[kind]
                return super().forward(x)[0], part

        module, plain = wrapped(tmp_path, Quantiser()), Quantiser()
        with caplog.at_level(logging.WARNING, "warmstore"):
            for ids in ([0, 1, 2], [2, 1, 0], [3], [0, 1, 2]):
                out, expected = module(X[ids], cache_ids=ids), plain(X[ids])
                same(out, (expected[0], expected[1].detach()))
        (record,) = caplog.records
        assert "out_dims" in record.getMessage()
        assert len(module.cache) == 0

    def grid(self, o, h, c):
        return {"o": o, "grid": torch.arange(12.0).reshape(3, 4)}

    def test_that_are_computed_are_found_at_the_second_batch(self, tmp_path):
        module = wrapped(tmp_path, Shaped(self.grid))
        module(X[:3], cache_ids=[0, 1, 2])
        for _ in range(2):
            with pytest.raises(ws.AmbiguousBatch, match=r"'grid': None.*another cache id"):
                module(X[3:], cache_ids=[3, 4, 5])
            module.cache.close()
            module = wrapped(tmp_path, Shaped(self.grid))
            module(X[:3], cache_ids=[6, 7, 8])

    @pytest.mark.parametrize("other", [1, 2, 5])
    def test_and_by_a_batch_of_another_size(self, tmp_path, other):
        module = wrapped(tmp_path, Shaped(self.grid))
        with pytest.raises(ws.SchemaMismatch, match="out_dims"):
            module(X[:other], cache_ids=range(other))
        for ids in ([0, 1, 2], [2, 1, 0]):  # one that fits by accident, afterwards
            same(module(X[ids], cache_ids=ids), Shaped(self.grid)(X[ids]))
        assert len(module.cache) == 0

        module = wrapped(tmp_path, Shaped(self.grid))
        module(X[:3], cache_ids=[0, 1, 2])
        with pytest.raises((ws.SchemaMismatch, ws.AmbiguousBatch), match="out_dims"):
            module(X[-other:], cache_ids=range(6 - other, 6))

    def test_an_error_of_the_caller_is_forgotten(self, tmp_path):
        """A batch that does not fit may be the wrong input; the next one that does is kept, after a second look."""
        module = wrapped(tmp_path, Shaped(lambda o, h, c: o if len(o) > 1 else o[0]))
        with pytest.raises(ws.SchemaMismatch, match="out_dims"):
            module(X[:1], cache_ids=[0])
        for _ in range(2):
            same(module(X[:4], cache_ids=range(4)), Recurrent()(X[:4])[0])
        assert module.module.rows == [1, 4, 2]

    def test_what_only_looks_so_costs_one_batch(self, tmp_path):
        def shape(o, h, c):
            return {"o": o, "zeros": torch.zeros(len(o), 4)}

        module = wrapped(tmp_path, Shaped(shape))
        for first in (0, 3, 0, 3):
            module(X[first : first + 3], cache_ids=range(first, first + 3))
        module(X[:3], cache_ids=[7, 8, 9])
        assert module.module.rows == [3, 3, 2, 3]


class TestBatchesOfOne:
    def test_lstm_says_what_to_pass(self, tmp_path):
        module = wrapped(tmp_path, Recurrent())
        plain = Recurrent()
        same(module(X[:1], cache_ids=[0]), plain(X[:1]))
        same(module(X[:1], cache_ids=[0]), plain(X[:1]))
        with pytest.raises(ws.SchemaMismatch, match=r"out_dims.*dimension 1 has 2"):
            module(X[:3], cache_ids=[0, 1, 2])
        with pytest.raises(ws.SchemaMismatch, match="out_dims"):  # and not a third sample that nobody computes
            module(X[:2], cache_ids=[0, 0])

    def test_are_kept_and_served_one_by_one(self, tmp_path):
        """Which dimension of size 1 is the samples' does not matter there."""
        for computed in (6, 0):
            module = wrapped(tmp_path, Recurrent())
            for at in (*range(6), *range(6)):
                same(module(X[at : at + 1], cache_ids=[at]), Recurrent()(X[at : at + 1]))
            assert sum(module.module.rows) == computed
            module.cache.close()

    @pytest.mark.parametrize("flushed", [False, True])
    @pytest.mark.parametrize(
        "shape",
        thinned(
            2,
            [
                lambda o, h, c: o[:, :1, :1],
                lambda o, h, c: o[:, 0, :1],
                lambda o, h, c: (o, o[:, 0]),
                lambda o, h, c: {"o": o, "more": [c[0], h[0, :, :1]]},
            ],
        ),
    )
    def test_a_batch_of_several_shows_the_rest(self, tmp_path, shape, flushed):
        module, plain = wrapped(tmp_path, Shaped(shape), lists="structure"), Shaped(shape)
        for at in range(3):
            module(X[at : at + 1], cache_ids=[at])
        if flushed:
            module.cache.close()
            module = wrapped(tmp_path, Shaped(shape), lists="structure")
        before = list(module.module.rows)
        for _ in range(2):
            for ids in ([0, 4, 2, 5], [0, 1, 2]):
                same(module(X[ids], cache_ids=ids), plain(X[ids]))
        assert module.module.rows == [*before, 2]  # the two that were not there have shown it
        module.cache.close()

        module = wrapped(tmp_path, Shaped(shape), lists="structure")
        same(module(X[:3], cache_ids=range(3)), plain(X[:3]))
        assert module.module.rows == []  # and it is written down

    def test_all_hits_are_computed_once_more(self, tmp_path):
        module, plain = wrapped(tmp_path, Shaped(lambda o, h, c: (o, c[0]))), Shaped(lambda o, h, c: (o, c[0]))
        for at in range(3):
            module(X[at : at + 1], cache_ids=[at])
        for ids in ([0, 1, 2], [2, 1], [1, 1]):
            same(module(X[ids], cache_ids=ids), plain(X[ids]))
        assert module.module.rows == [1, 1, 1, 3]
        assert module.cache.stats().misses == 3

    def test_one_more_sample_is_computed_with_its_batch(self, tmp_path):
        module, plain = wrapped(tmp_path, Shaped(lambda o, h, c: (o, c[0]))), Shaped(lambda o, h, c: (o, c[0]))
        module(X[:1], cache_ids=[0])
        same(module(X[:2], cache_ids=[0, 1]), plain(X[:2]))
        same(module(X[[1, 0]], cache_ids=[1, 0]), plain(X[[1, 0]]))
        assert module.module.rows == [1, 2]
        assert len(module.cache) == 2

    def test_a_single_part_has_to_be_per_sample(self, tmp_path):
        module = wrapped(tmp_path, Shaped(lambda o, h, c: o))
        for at in range(3):
            module(X[at : at + 1], cache_ids=[at])
        same(module(X[:3], cache_ids=range(3)), Recurrent()(X[:3])[0])
        assert module.module.rows == [1, 1, 1]

    def test_are_not_put_together_by_hand(self, tmp_path):
        module = wrapped(tmp_path, Recurrent())
        for at in range(2):
            module(X[at : at + 1], cache_ids=[at])
        same(module.cache.get_batch([1])[0], Recurrent()(X[1:2]))
        with pytest.raises(ws.AmbiguousBatch, match="out_dims"):
            module.cache.get_batch([0, 1])

    @pytest.mark.parametrize("merged", [False, True])
    def test_filled_ahead(self, tmp_path, merged):
        """A loader of single samples, and then the cache alone: one sample more has shown where they lie."""
        module = wrapped(tmp_path / "a", Shaped(lambda o, h, c: (o, c[0])))
        module.cache.fill(module, [(X[at : at + 1], [at]) for at in range(4)])
        cache = module.cache
        if merged:
            cache = ws.FeatureCache(tmp_path / "b", "id")
            cache.merge(module.cache)
        same(cache.get_batch(range(4))[0], Shaped(lambda o, h, c: (o, c[0]))(X[:4]))

    def test_merged_from_a_cache_that_does_not_know(self, tmp_path):
        module = wrapped(tmp_path / "a", Recurrent())
        for at in range(2):
            module(X[at : at + 1], cache_ids=[at])
        with ws.FeatureCache(tmp_path / "b", "id") as cache:
            cache.merge(module.cache)
            with pytest.raises(ws.AmbiguousBatch, match="out_dims"):
                cache.get_batch([0, 1])

    def test_filled_ahead_where_samples_lie_elsewhere(self, tmp_path):
        module = wrapped(tmp_path, Recurrent())
        module.cache.fill(module, [(X[at : at + 1], [at]) for at in range(4)])
        with pytest.raises(ws.AmbiguousBatch, match="out_dims"):
            module.cache.get_batch(range(4))


class TestSecondSize:
    """Where two dimensions have the size of the batch, the module runs on one or two of its samples as well."""

    @pytest.mark.parametrize("count", [2, 3, 5])
    def test_shows_that_samples_come_first(self, tmp_path, count, caplog):
        def shape(o, h, c):
            return {"square": torch.cat([o, o], 1)[:, :count], "more": o[:, 0]}

        module, plain = wrapped(tmp_path, Shaped(shape)), Shaped(shape)
        for ids in (list(range(count)), [0, 1], [0], list(range(count))[::-1]):
            same(module(X[ids], cache_ids=ids), plain(X[ids]))
        assert module.module.rows == [count, 1 if count == 2 else 2]  # all else were hits
        assert not caplog.records

    @pytest.mark.parametrize(("layers", "count"), [(2, 2), (3, 3)])
    def test_shows_that_they_do_not(self, tmp_path, layers, count, caplog):
        module, plain = wrapped(tmp_path, Recurrent(layers=layers)), Recurrent(layers=layers)
        with caplog.at_level(logging.WARNING, "warmstore"):
            for _ in range(3):
                same(module(X[:count], cache_ids=range(count)), plain(X[:count]))
        assert len(module.cache) == 0
        (record,) = caplog.records
        assert "out_dims=(0, (1, 1))" in record.getMessage()
        with pytest.raises((ws.AmbiguousBatch, ws.SchemaMismatch), match="out_dims"):
            module(X[:4], cache_ids=range(4))

    def test_what_the_message_says_is_right(self, tmp_path):
        module = wrapped(tmp_path, Recurrent(layers=3), (0, (1, 1)))
        module(X[:3], cache_ids=range(3))
        for ids in ([2, 0], [1], [0, 1, 2]):
            same(module(X[ids], cache_ids=ids), Recurrent(layers=3)(X[ids]))
        assert module.module.rows == [3]

    def test_is_none_where_a_single_matrix_is_returned(self, tmp_path):
        """Features [N, D] with as many dimensions as samples are common."""
        module = wrapped(tmp_path, Shaped(lambda o, h, c: o[:, 0]))
        for _ in range(2):
            module(X[:4], cache_ids=range(4))
        assert module.module.rows == [4]

    def test_random_numbers_go_on_as_if_it_had_not_run(self, tmp_path):
        def shape(o, h, c):
            return o[:, :3] + torch.rand(1), o

        torch.manual_seed(0)
        wrapped(tmp_path, Shaped(shape))(X[:3], cache_ids=range(3))
        after = torch.rand(1)
        torch.manual_seed(0)
        Shaped(shape)(X[:3])
        assert torch.equal(after, torch.rand(1))

    def test_that_the_module_cannot_compute(self, tmp_path, caplog):
        class Fixed(Recurrent):
            def forward(self, x):
                assert len(x) == 3, "batches of 3"
                return super().forward(x)

        module = wrapped(tmp_path, Fixed(layers=3))
        with caplog.at_level(logging.WARNING, "warmstore"):
            for _ in range(2):
                same(module(X[:3], cache_ids=range(3)), Recurrent(layers=3)(X[:3]))
        assert len(module.cache) == 0
        (record,) = caplog.records
        assert "batches of 3" in record.getMessage()

    def test_lists_that_may_be_levels(self, tmp_path):
        """Three states in a list for three samples are no list of one item per sample."""
        module = wrapped(tmp_path, Shaped(lambda o, h, c: [h, c, h + 1]))
        same(module(X[:3], cache_ids=range(3)), Shaped(lambda o, h, c: [h, c, h + 1])(X[:3]))
        assert len(module.cache) == 0

    def test_lists_of_one_item_per_sample(self, tmp_path):
        def shape(o, h, c):
            return [one[: 1 + at % 2, :3] for at, one in zip(h[0, :, 0].int(), o, strict=True)]

        module, plain = wrapped(tmp_path, Shaped(shape)), Shaped(shape)
        for ids in ([0, 1, 2], [2, 0], [1]):
            same(module(X[ids], cache_ids=ids), plain(X[ids]))
        assert sum(module.module.rows) == 5


def test_map_location_and_gradients_of_what_is_not_kept(tmp_path):
    module = Recurrent(layers=3)
    cached = ws.CachedModule(module, ws.FeatureCache(tmp_path, "id"), map_location="meta")
    output, (hidden, _) = cached(X[:3].clone().requires_grad_(), cache_ids=range(3))
    assert {output.device.type, hidden.device.type} == {"meta"}
    assert not output.requires_grad


def test_lstm_of_torch(tmp_path):
    lstm = nn.LSTM(4, 3, batch_first=True).requires_grad_(False).eval()
    module = ws.CachedModule(lstm, ws.FeatureCache(tmp_path, "id"), out_dims=LSTM_DIMS)
    first = module(X[:1], cache_ids=[0])
    for ids in ([0], [0, 1, 2], [2, 0, 2, 5], list(range(6))):
        output, (hidden, cell) = module(X[ids], cache_ids=ids)
        expected, (expected_hidden, expected_cell) = lstm(X[ids])
        torch.testing.assert_close((output, hidden, cell), (expected, expected_hidden, expected_cell))
        if 0 in ids:
            same(hidden[:, ids.index(0)], first[1][0][:, 0])


def test_disabled_hands_out_what_the_module_gives(tmp_path):
    module: Any = wrapped(tmp_path, Recurrent(), LSTM_DIMS)
    module.enabled = False
    same(module(X), Recurrent()(X))
