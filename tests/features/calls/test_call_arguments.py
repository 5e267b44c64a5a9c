"""Which arguments are per sample: all of them are cut to the misses, and nothing else is."""

import numpy as np
import pytest
import torch
from tests.slow import thinned

import warmstore as ws
from warmstore.features.calls.call_arguments import Arguments
from warmstore.features.calls.call_settings import CallSettings


def both(x, other):
    return x + other


class TestSlicedToTheMisses:
    """Only the first argument was once sliced to the misses; the others met the wrong rows."""

    @pytest.fixture
    def check(self, cached):
        def check(function, *args, **kwargs):
            module = cached(function)
            expected = function(*args, **kwargs)
            some = Arguments(args, kwargs, 5, None).take(torch.tensor([3, 1]))
            module(*some[0], **some[1], cache_ids=[3, 1])
            got = module(*args, **kwargs, cache_ids=range(5))
            assert module.rows == [2, 3]
            torch.testing.assert_close(got, expected, rtol=0, atol=0)

        return check

    def test_positional(self, check):
        check(both, torch.rand(5, 2), torch.rand(5, 1))

    def test_keyword(self, check):
        check(both, torch.rand(5, 2), other=torch.rand(5, 2))

    def test_mask(self, check):
        check(lambda x, mask=None: x * mask[:, None], torch.rand(5, 2), mask=torch.rand(5) > 0.5)

    def test_numpy(self, check):
        check(lambda x, y: x + torch.from_numpy(y), torch.rand(5), np.arange(5.0, dtype=np.float32))

    def test_nested(self, check):
        check(lambda x, more: x + more["a"][0] * more["b"]["c"], torch.rand(5), {
            "a": (torch.rand(5), 3), "b": {"c": torch.rand(5)}})  # fmt: skip

    def test_strings(self, check):
        names = ["a", "bb", "ccc", "dddd", "eeeee"]
        check(lambda x, names: x * torch.tensor([len(name) for name in names]), torch.rand(5), names)

    def test_tuple_of_strings_as_torch_collates_them(self, check):
        names = ("a", "bb", "ccc", "dddd", "eeeee")
        check(lambda x, names: x * torch.tensor([len(name) for name in names]), torch.rand(5), names)

    def test_list_of_tensors_per_sample(self, check):
        clouds = [torch.rand(at + 1, 3) for at in range(5)]
        check(lambda x, clouds: x + torch.stack([cloud.sum() for cloud in clouds]), torch.rand(5), clouds)

    def test_input_behind_other_arguments(self, cached):
        module = cached(lambda x, scale: x * scale)
        x = torch.rand(5, 2)
        module(x=x[:2], scale=3, cache_ids=[0, 1])
        assert torch.equal(module(x=x, scale=3, cache_ids=range(5)), x * 3)

    def test_scalar_tensors_and_weights_pass_whole(self, check):
        check(lambda x, scale, w: x @ w * scale, torch.rand(5, 7), torch.tensor(2.0), torch.eye(7))


class TestDictBatches:
    """Dict batches were once recomputed in the wrong rows."""

    def test_ids_in_the_batch(self, tmp_path, counting):
        class Model(torch.nn.Module):
            def forward(self, batch):
                rows.append(list(batch["cache_ids"]))
                return batch["x"] * batch["more"]["y"]

        rows: list = []
        module = ws.CachedModule(Model(), ws.FeatureCache(tmp_path, "id"))
        x, y = torch.rand(4, 3), torch.rand(4, 1)
        ids = ["a", "b", "c", "d"]

        def batch(which):
            return {"cache_ids": [ids[at] for at in which], "x": x[which], "more": {"y": y[which]}}

        module(batch([2, 0]))
        assert torch.equal(module(batch([0, 1, 2, 3])), x * y)
        assert torch.equal(module(batch=batch([3, 2, 1, 0])), (x * y).flip(0))
        assert rows == [["c", "a"], ["b", "d"]]

    def test_class_of_the_dict_survives(self, cached):
        class Batch(dict):
            def total(self):
                return self["x"] + self["y"]

        module = cached(lambda batch: batch.total())
        module.module.forward = lambda batch: batch.total()
        x, y = torch.rand(3), torch.rand(3)
        module(Batch(x=x[:1], y=y[:1]), cache_ids=[0])
        assert torch.equal(module(Batch(x=x, y=y), cache_ids=[0, 1, 2]), x + y)


class TestBatchArgs:
    def test_name_what_is_a_batch(self, cached):
        table = torch.rand(4, 2)  # as many rows as the batch has samples
        module = cached(lambda x, table: x @ table, batch_args=[0])
        x = torch.rand(4, 4)
        module(x[:2], table, cache_ids=[0, 1])
        assert torch.equal(module(x, table, cache_ids=range(4)), torch.cat([x[:2] @ table, x[2:] @ table]))

    def test_input_that_does_not_come_first(self, cached):
        module = cached(lambda table, x: x @ table, batch_args=[1])
        x, table = torch.rand(4, 2), torch.rand(2, 2)
        module(table, x[:1], cache_ids=[0])
        torch.testing.assert_close(module(table, x, cache_ids=range(4)), x @ table)

    def test_without_it_the_first_tensor_counts(self, cached):
        module = cached(lambda table, x: x @ table)
        with pytest.raises(ws.BadIds, match="batch_args"):
            module(torch.rand(2, 2), torch.rand(4, 2), cache_ids=range(4))

    def test_square_list_is_ambiguous_without_it(self, cached):
        batches = [torch.rand(2, 3), torch.rand(2, 3)]
        with pytest.raises(ws.AmbiguousBatch, match="tuple"):
            cached(lambda batches: batches[0])(batches, cache_ids=[1, 2])


class TestOtherArguments:
    """Arguments that are no batches are part of what the outputs depend on."""

    @pytest.mark.parametrize(
        ("one", "other"),
        thinned(
            3,
            [
                (2, 3),
                (True, 1),
                ("mean", "max"),
                (None, 1),
                ((1, 2), (1, 3)),
                ([1, 2], [1, 3]),
                ({"k": 1}, {"k": 2}),
                (torch.tensor(1.0), torch.tensor(2.0)),
                (torch.ones(7), torch.zeros(7)),
                (np.ones(7), np.zeros(7)),
                (torch.float16, torch.float32),
                (torch.tanh, torch.sigmoid),
                (lambda v: v + 1, lambda v: v + 2),
            ],
        ),
    )
    def test_change_is_stale(self, cached, one, other):
        module = cached(lambda x, option=0: x)
        module(torch.ones(4), option=one, cache_ids=range(4))
        module(torch.ones(4), option=one, cache_ids=range(4))
        with pytest.raises(ws.StaleCache, match=r"`argument |<lambda>"):
            module(torch.ones(4), option=other, cache_ids=range(4))

    def test_same_ones_are_the_same(self):
        first = Arguments((torch.ones(3), 2, {"a": torch.ones(1)}), {"k": "v"}, 3, None).fixed()
        second = Arguments((torch.zeros(3), 2, {"a": torch.ones(1)}), {"k": "v"}, 3, None).fixed()
        assert list(first) == list(second) == ["argument 1", "argument 2", "argument k"]
        text_of = CallSettings(None, ()).text
        assert [text_of(*one) for one in first.items()] == [text_of(*one) for one in second.items()]
        assert Arguments((torch.ones(3),), {}, 3, None).fixed() == {}


def test_device_is_the_first_tensors():
    assert Arguments(({"ids": ["a"], "x": torch.ones(1)},), {}, 1, None).device() == torch.device("cpu")
    assert Arguments((["a"],), {"x": torch.ones(1, device="meta")}, 1, None).device() == torch.device("meta")
    assert Arguments((["a"],), {}, 1, None).device() is None


class Masked(torch.nn.Module):
    def forward(self, x, mask=None, other=None):
        if isinstance(x, dict):
            x, mask = x["x"], x.get("mask")
        parts = [part for part in (x, mask, other) if part is not None]
        return torch.stack(parts).prod(0)


class TestWhichArgumentsAreBatches:
    """An output with a mask is another one than that without."""

    @pytest.fixture
    def check(self, tmp_path):
        def check(first, second, is_same=False):
            module = ws.CachedModule(Masked(), ws.FeatureCache(tmp_path, "id"))
            module(*first[0], **first[1], cache_ids=range(5))
            if is_same:
                module(*second[0], **second[1], cache_ids=range(5))
                assert module.cache.stats().hits == 5
            else:
                with pytest.raises(ws.StaleCache, match="arguments per sample"):
                    module(*second[0], **second[1], cache_ids=range(5))

        return check

    x, mask = torch.rand(5, 2), torch.ones(5, 2)

    def test_one_more(self, check):
        check(((self.x,), {"mask": self.mask}), ((self.x,), {}))

    def test_another(self, check):
        check(((), {"x": self.x}), ((), {"other": self.x}))

    def test_in_a_dict(self, check):
        check((({"x": self.x, "mask": self.mask},), {}), (({"x": self.x},), {}))

    def test_by_position_or_by_name(self, check):
        check(((self.x, self.mask), {}), ((), {"mask": self.mask, "x": self.x}), is_same=True)

    def test_the_first_by_name(self, check):
        check(((self.x,), {}), ((), {"x": self.x}), is_same=True)


def test_a_tuple_is_no_list(cached):
    module = cached(lambda x, option: x * (1 if isinstance(option, list) else 2))
    module(torch.ones(4), option=[7, 8, 9], cache_ids=range(4))
    module(torch.ones(4), option=[7, 8, 9], cache_ids=range(4))
    with pytest.raises(ws.StaleCache, match="`argument option`"):
        module(torch.ones(4), option=(7, 8, 9), cache_ids=range(4))
