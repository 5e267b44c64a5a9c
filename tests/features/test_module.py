"""CachedModule: a drop-in wrapper that computes each sample once."""

import copy
import io
import pickle
import threading
from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from tests.slow import thinned
from torch import nn

import warmstore as ws
from warmstore.features.calls import stateless

IDS = {
    "list of int": [0, 1, 2, 3],
    "tuple of str": ("0", "1", "2", "3"),
    "range": range(4),
    "array of int": np.arange(4, dtype=np.int16),
    "array of unsigned": np.arange(4, dtype=np.uint64),
    "array of str": np.array(["0", "1", "2", "3"]),
    "array of objects": np.array(["0", 1, "2", 3], dtype=object),
    "tensor": torch.arange(4),
    "tensor of int32": torch.arange(4, dtype=torch.int32),
    "list of scalars": [torch.tensor(0), np.int64(1), 2, torch.tensor(3, dtype=torch.uint8)],
    "large ints": [-1, 2**63, 2**64, -(2**70)],
    "mixed": [5, "5", "", "é"],
    "a thousand characters": ["k" * 1000 + str(at) for at in range(4)],
}


class TestIds:
    @pytest.mark.parametrize("kind", thinned(2, IDS))
    def test_every_kind(self, cached, kind):
        module = cached()
        x = torch.rand(4, 2)
        ids = IDS[kind]
        module(x, cache_ids=ids)
        module.cache.flush()
        assert torch.equal(module(torch.zeros(4, 2), cache_ids=ids), x * 2)
        assert module.rows == [4]

    def test_one_number_is_one_id_in_every_kind(self, cached):
        module = cached()
        module(torch.ones(1), cache_ids=[7])
        for ids in ((7,), np.array([7], np.uint8), torch.tensor([7]), [torch.tensor(7)], [np.int32(7)]):
            module(torch.ones(1), cache_ids=ids)
        assert module.rows == [1]

    def test_5_and_the_string_5_differ(self, cached):
        module = cached()
        module(torch.tensor([1.0]), cache_ids=[5])
        assert module(torch.tensor([2.0]), cache_ids=["5"]).item() == 4
        assert module(torch.tensor([0.0, 0.0]), cache_ids=["5", 5]).tolist() == [4, 2]

    def test_keyword_dict_and_function(self, tmp_path, counting):
        cache = ws.FeatureCache(tmp_path, "id")
        inner = counting(lambda x: x)
        inner.forward = lambda batch: batch["x"] * 2
        batch = {"x": torch.rand(2), "cache_ids": ["a", "b"], "names": ["c", "d"]}
        by_dict, by_function = ws.CachedModule(inner, cache), ws.CachedModule(inner, cache, key_from_batch=names_of)
        by_dict(batch)
        assert cache.get_batch(["a", "b"])[1].tolist() == []
        by_function(batch)
        assert cache.get_batch(["c", "d"])[1].tolist() == []
        by_function(batch, cache_ids=["e", "f"])
        assert cache.get_batch(["e", "f"])[1].tolist() == []

    def test_missing(self, cached):
        with pytest.raises(ws.BadIds, match="cache_ids is missing"):
            cached()(torch.rand(2))

    @pytest.mark.parametrize("flushed", thinned(2, [None, False, True]))
    @pytest.mark.parametrize(
        ("ids", "error"),
        [
            ([1, 2], ws.BadIds),
            ([1, 2, 3, 4], ws.BadIds),
            ([], ws.BadIds),
            ([1, None, 3], ws.BadIds),
            ([1, True, 3], ws.BadIdType),
            ([1, 2.0, 3], ws.BadIdType),
            ([1, bytearray(b"2"), 3], ws.BadIdType),
            ([(1, 2.0), 2, 3], ws.BadIdType),
            ([(1, 4, 7), (2, 5, 8), (3, 6, 9)], ws.BadIds),
            (np.ones(3), ws.BadIdType),
            (torch.ones(3), ws.BadIdType),
            (torch.ones(3, dtype=torch.bool), ws.BadIdType),
            (np.array([b"a", b"b", b"c"]), ws.BadIdType),
            ("abc", ws.BadIds),
            (b"abc", ws.BadIds),
            (3, ws.BadIds),
            (iter([1, 2, 3]), ws.BadIds),
            (torch.ones(3, 1, dtype=torch.int64), ws.BadIds),
            (torch.tensor(1), ws.BadIds),
        ],
    )
    def test_bad_ones_compute_and_keep_nothing(self, cached, ids, error, flushed):
        """Fewer ids than rows were once accepted."""
        module = cached()
        if flushed is not None:
            module(torch.ones(3, 2), cache_ids=[7, 8, 9])
        if flushed:
            module.cache.flush()
        computed, kept = list(module.rows), len(module.cache)
        with pytest.raises(error):
            module(torch.ones(3, 2), cache_ids=ids)
        assert module.rows == computed
        assert len(module.cache) == kept


def names_of(batch):
    return batch["names"]


class TestDuplicates:
    def test_computed_once(self, cached):
        module = cached()
        x = torch.tensor([1.0, 2.0, 1.0, 1.0])
        assert module(x, cache_ids=["a", "b", "a", "a"]).tolist() == [2, 4, 2, 2]
        assert module.rows == [2]
        assert len(module.cache) == 2

    @pytest.mark.parametrize("flushed", [False, True])
    def test_beside_hits(self, cached, flushed):
        module = cached()
        module(torch.tensor([1.0]), cache_ids=["a"])
        if flushed:
            module.cache.flush()
        x = torch.tensor([3.0, 1.0, 2.0, 1.0, 3.0])
        assert module(x, cache_ids=["c", "a", "b", "a", "c"]).tolist() == [6, 2, 4, 2, 6]
        assert module.rows == [1, 2]

    def test_all_hits(self, cached):
        module = cached()
        module(torch.tensor([1.0, 2.0]), cache_ids=[1, 2])
        module.cache.flush()
        assert module(torch.zeros(4), cache_ids=[2, 1, 2, 2]).tolist() == [4, 2, 4, 4]


@pytest.mark.parametrize("flushed", [False, True])
def test_cached_tensors_do_not_alias_the_callers(cached, flushed):
    module = cached(lambda x: {"same": x, "view": x[:, :1], "list": [[float(v)] for v in x[:, 0]]}, lists="per_sample")
    x = torch.arange(8.0).reshape(4, 2)
    expected = x.clone()
    out = module(x, cache_ids=range(4))
    x.zero_()
    for _ in range(3):
        out["same"].fill_(-1)
        out["view"].fill_(-1)
        out["list"][0].append("changed")
        if flushed:
            module.cache.flush()
        out = module(x, cache_ids=range(4))
        assert torch.equal(out["same"], expected)
        assert torch.equal(out["view"], expected[:, :1])
        assert out["list"] == [[0.0], [2.0], [4.0], [6.0]]
    part = module(torch.full((3, 2), 9.0), cache_ids=[0, 1, 77])
    part["same"].zero_()
    assert module(torch.zeros(2, 2), cache_ids=[0, 77])["same"].tolist() == [[0, 1], [9, 9]]


class TestEmptyBatch:
    def test_before_anything(self, cached):
        module = cached(lambda x: x.sum(1))
        assert module(torch.ones(0, 3), cache_ids=[]).shape == (0,)
        assert len(module.cache) == 0

    @pytest.mark.parametrize("ids", [[], (), np.zeros(0, np.int64), torch.zeros(0, dtype=torch.int64)])
    def test_after_a_commit(self, cached, ids):
        module = cached(lambda x: x.sum(1))
        module(torch.ones(2, 3), cache_ids=[1, 2])
        module.cache.flush()
        assert module(torch.ones(0, 3), cache_ids=ids).shape == (0,)
        assert len(module.cache) == 2


class TestModuleThatRaises:
    def test_nothing_is_cached_and_the_next_call_is_right(self, cached):
        def function(x):
            if (x < 0).any():
                raise ZeroDivisionError
            return x * 2

        module = cached(function)
        module(torch.ones(1), cache_ids=[1])
        with pytest.raises(ZeroDivisionError):
            module(torch.tensor([1.0, -5.0]), cache_ids=[1, 2])
        assert module.cache.get_batch([1, 2])[1].tolist() == [1]
        assert module(torch.tensor([1.0, 5.0]), cache_ids=[1, 2]).tolist() == [2, 10]

    def test_output_that_is_not_per_sample(self, cached):
        module = cached(lambda x: x.mean(0))
        with pytest.raises(ws.SchemaMismatch, match="not one value per sample"):
            module(torch.ones(4, 3), cache_ids=range(4))
        assert len(module.cache) == 0


class TestStateless:
    """F11."""

    def test_trainable_parameters_are_named(self, tmp_path):
        with pytest.raises(RuntimeError, match="weight"):
            ws.CachedModule(nn.Linear(2, 2), ws.FeatureCache(tmp_path, "id"))

    def test_a_module_that_is_unfrozen_later_is_refused_where_gradients_are_recorded(
        self, linear, tmp_path, monkeypatch
    ):
        monkeypatch.setattr(stateless, "_SECONDS", 0)
        module = ws.CachedModule(linear, ws.FeatureCache(tmp_path, "id"))
        batch = torch.ones(2, linear.in_features)
        module(batch, cache_ids=[1, 2])
        linear.requires_grad_(True)
        with torch.no_grad():
            module(batch, cache_ids=[1, 2])
        with pytest.raises(ws.NotStateless, match=r"weight.*carry no gradient"):
            module(batch, cache_ids=[1, 2])
        linear.requires_grad_(False)
        module(batch, cache_ids=[1, 2])

    def test_unless_told_otherwise(self, tmp_path):
        module = ws.CachedModule(nn.Linear(2, 2), ws.FeatureCache(tmp_path, "id"), enforce_stateless=False)
        out = module(torch.rand(2, 2, requires_grad=True), cache_ids=[1, 2])
        assert not out.requires_grad

    def test_module_that_changes_its_weights_as_it_computes(self, tmp_path):
        module = nn.BatchNorm1d(2).requires_grad_(False)
        module = ws.CachedModule(module, ws.FeatureCache(tmp_path, "id"), enforce_stateless=False)
        with pytest.raises(ws.StaleCache, match=r"changed while it computed.*running_mean"):
            module(torch.rand(4, 2), cache_ids=range(4))
        assert len(module.cache) == 0

    def test_training_mode_does_not_reach_the_module(self, linear, tmp_path):
        model = nn.Sequential(
            ws.CachedModule(nn.Sequential(linear, nn.Dropout()).eval(), ws.FeatureCache(tmp_path, "id"))
        )
        model.train()
        assert model[0].training
        assert not model[0].module.training
        assert not model[0].module[1].training


def test_disabled_calls_the_module_and_nothing_else(tmp_path):
    inner = nn.Linear(2, 2)
    module = ws.CachedModule(inner, ws.FeatureCache(tmp_path, "id"), enabled=False, enforce_stateless=False)
    out = module(torch.rand(3, 2))
    assert out.requires_grad
    assert len(module.cache) == 0
    module.enabled = True
    with pytest.raises(ws.BadIds):
        module(torch.rand(3, 2))


@dataclass
class Boxes:
    corners: torch.Tensor
    name: str


class TestMapLocation:
    """F10: stored on the CPU, returned where the input is, or where asked."""

    def test_input_device(self, cached):
        module = cached()
        module(torch.ones(2, 3), cache_ids=[1, 2])
        hit = module(torch.ones(2, 3, device="meta"), cache_ids=[1, 2])
        assert hit.device.type == "meta"

    def test_map_location(self, tmp_path, counting):
        module = ws.CachedModule(counting(lambda x: x), ws.FeatureCache(tmp_path, "id"), map_location="meta")
        assert module(torch.ones(0, 1), cache_ids=[]).device.type == "meta"
        x = torch.ones(2, 3)
        for _ in range(2):
            assert module(x, cache_ids=[1, 2]).device.type == "meta"
        assert module(torch.ones(3, 3), cache_ids=[1, 2, 3]).device.type == "meta"
        assert torch.equal(module.cache.get_batch([1, 2])[0], x)

    def test_map_location_of_a_dataclass_that_is_not_stored(self, tmp_path, counting):
        module = counting(lambda x, weights: Boxes(x + weights[:1].sum(), "x"))
        module = ws.CachedModule(module, ws.FeatureCache(tmp_path, "id"), map_location="meta")
        output = module(torch.ones(2, 3), torch.ones(2, 2), cache_ids=[1, 2])  # weights for each sample, or for all
        assert (type(output), output.corners.device.type, output.name) == (Boxes, "meta", "x")
        assert len(module.cache) == 0


class TestGradModes:
    @pytest.mark.parametrize("first", thinned(3, [torch.no_grad, torch.enable_grad, torch.inference_mode]))
    @pytest.mark.parametrize("second", [torch.no_grad, torch.enable_grad, torch.inference_mode])
    def test_callers(self, linear, tmp_path, first, second):
        module = ws.CachedModule(linear, ws.FeatureCache(tmp_path, "id"))
        x = torch.rand(4, 3)
        with first():
            miss = module(x, cache_ids=range(4))
        assert not miss.requires_grad
        for flushed in (False, True):
            with second():
                hit = module(x, cache_ids=range(4))
                assert torch.equal(hit, miss)
                assert not hit.requires_grad
                torch.testing.assert_close(module(x, cache_ids=[0, 1, 8 + flushed, 3]), linear(x))
            module.cache.flush()

    def test_features_feed_a_trained_head(self, linear, tmp_path):
        module, head = ws.CachedModule(linear, ws.FeatureCache(tmp_path, "id")), nn.Linear(2, 1)
        for _ in range(2):
            head(module(torch.rand(4, 3), cache_ids=range(4))).sum().backward()
        assert head.weight.grad is not None


def test_autocast_is_part_of_what_outputs_depend_on(linear, tmp_path):
    module = ws.CachedModule(linear, ws.FeatureCache(tmp_path, "id"))
    x = torch.rand(4, 3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert module(x, cache_ids=range(4)).dtype == torch.bfloat16
        assert module(x, cache_ids=range(4)).dtype == torch.bfloat16
    with pytest.raises(ws.StaleCache, match="autocast"):
        module(x, cache_ids=range(4))
    with torch.autocast("cpu", dtype=torch.float16), pytest.raises(ws.StaleCache, match="autocast"):
        module(x, cache_ids=range(4))


@pytest.mark.parametrize("committed", [False, True])
def test_autocast_of_a_device_other_than_the_inputs(linear, tmp_path, monkeypatch, committed):
    """Hooks and `forward` move inputs to the device that computes."""
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    module = ws.CachedModule(linear, ws.FeatureCache(tmp_path, "id"))
    x = torch.rand(4, 3)
    module(x, cache_ids=range(4))
    if committed:  # a repeated call takes a shorter path
        module.cache.flush()
        module(x, cache_ids=range(4))
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda kind: kind == "cuda")
    with pytest.raises(ws.StaleCache, match=r"autocast.*cuda torch\.float16"):
        module(x, cache_ids=range(4))


class Encoder(nn.Module):
    hidden = 7

    def __init__(self):
        super().__init__()
        self.module = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
        self.scale = nn.Parameter(torch.ones(3))
        self.requires_grad_(False)
        self.eval()

    def forward(self, x):
        return self.module(x) * self.scale

    def patches(self):
        return "patches"


class TestStateDict:
    """The wrapper's is the wrapped module's, alone and nested in a parent, whatever its parts are called."""

    @pytest.fixture
    def wrapped(self, tmp_path):
        return ws.CachedModule(Encoder(), ws.FeatureCache(tmp_path, "id"))

    def test_alone(self, wrapped):
        state, plain = wrapped.state_dict(), wrapped.module.state_dict()
        assert list(state) == list(plain)
        assert state._metadata == plain._metadata

    def test_nested(self, wrapped):
        parent = nn.Sequential(OrderedDict(head=nn.Linear(3, 3), features=wrapped, tail=nn.Linear(3, 3)))
        plain = nn.Sequential(OrderedDict(head=parent.head, features=wrapped.module, tail=parent.tail))
        assert list(parent.state_dict()) == list(plain.state_dict())
        assert dict(parent.state_dict()._metadata) == dict(plain.state_dict()._metadata)

    @pytest.mark.parametrize("assign", [False, True])
    @pytest.mark.parametrize("nested", [False, True])
    @pytest.mark.parametrize("to_wrapped", [False, True])
    def test_loads_both_ways(self, wrapped, nested, to_wrapped, assign):
        plain = Encoder()
        plain.scale.fill_(5)
        plain.module[0].weight.fill_(2)
        one, other = (nn.Sequential(wrapped), nn.Sequential(plain)) if nested else (wrapped, plain)
        source, target = (other, one) if to_wrapped else (one, other)
        state = source.state_dict()
        before = {key: value.clone() for key, value in state.items()}
        target.load_state_dict(state, assign=assign)
        assert all(torch.equal(value, target.state_dict()[key]) for key, value in before.items())
        assert list(state) == list(before)

    def test_strict_says_what_is_wrong(self, wrapped):
        state = wrapped.state_dict()
        state["extra"] = state.pop("scale")
        with pytest.raises(RuntimeError, match=r"extra[\s\S]*scale|scale[\s\S]*extra"):
            wrapped.load_state_dict(state)

    def test_saved_with_torch(self, wrapped):
        file = io.BytesIO()
        torch.save(wrapped.state_dict(), file)
        file.seek(0)
        Encoder().load_state_dict(torch.load(file))


class Clip(nn.Module):
    """Two encoders in one module; nobody calls its forward."""

    def __init__(self):
        super().__init__()
        self.module, self.text = nn.Linear(3, 2), nn.Linear(3, 2)
        self.requires_grad_(False)
        self.calls = 0

    def encode_image(self, x):
        return self.module(x)

    def encode_text(self, x):
        return self.text(x) + self.bonus

    bonus = 1.0


class TestMethods:
    """A method of a module is cached as a module is."""

    X = torch.rand(4, 3)

    def test_computed_once(self, tmp_path):
        clip = Clip()
        with ws.FeatureCache(tmp_path, "id") as cache:
            for _ in range(2):
                assert torch.equal(
                    ws.CachedModule(clip.encode_image, cache)(self.X, cache_ids=range(4)), clip.module(self.X)
                )
            assert (cache.stats().misses, cache.stats().hits) == (4, 4)

    def test_two_methods_of_one_module_are_two_modules(self, tmp_path):
        clip = Clip()
        with ws.FeatureCache(tmp_path, "id") as cache:
            ws.CachedModule(clip.encode_image, cache)(self.X, cache_ids=range(4))
            with pytest.raises(ws.StaleCache):
                ws.CachedModule(clip.encode_text, cache)(self.X, cache_ids=range(4))

    @pytest.mark.parametrize("edit", ["weights", "a value that it uses", "code"])
    def test_changes_are_seen(self, tmp_path, monkeypatch, edit):
        clip = Clip()
        with ws.FeatureCache(tmp_path, "id") as cache:
            features = ws.CachedModule(clip.encode_text, cache)
            features(self.X, cache_ids=range(4))
            if edit == "weights":
                clip.text.weight.add_(1)
            elif edit == "code":
                monkeypatch.setattr(Clip, "encode_text", lambda self, x: self.text(x) - 1)
                features = ws.CachedModule(clip.encode_text, cache)
            else:
                monkeypatch.setattr(Clip, "bonus", 2.0)
            with pytest.raises(ws.StaleCache):
                features(self.X, cache_ids=range(4))

    def test_state_and_attributes_are_the_modules(self, tmp_path):
        clip = Clip()
        features = ws.CachedModule(clip.encode_image, ws.FeatureCache(tmp_path, "id"))
        assert list(features.state_dict()) == list(clip.state_dict())
        assert features.state_dict()._metadata == clip.state_dict()._metadata
        parent, other = nn.Sequential(features), nn.Sequential(Clip())
        parent.load_state_dict(other.state_dict())
        assert torch.equal(clip.text.bias, other[0].text.bias)
        assert features.bonus == 1.0
        twin = pickle.loads(pickle.dumps(features))
        assert torch.equal(twin(self.X, cache_ids=range(4)), clip.module(self.X))
        twin.cache.close()

    @pytest.mark.parametrize("callee", [torch.relu, lambda x: x, "encode_image", [].append])
    def test_other_functions_are_refused(self, tmp_path, callee):
        with pytest.raises(TypeError, match="only modules, and methods of modules"):
            ws.CachedModule(callee, ws.FeatureCache(tmp_path, "id"))


def test_attributes_pass_through(tmp_path):
    wrapped = ws.CachedModule(Encoder(), ws.FeatureCache(tmp_path, "id"))
    assert wrapped.hidden == 7
    assert wrapped.patches() == "patches"
    assert torch.equal(wrapped.scale, torch.ones(3))
    assert isinstance(wrapped, nn.Module)
    assert not hasattr(wrapped, "nothing")
    assert sum(1 for _ in wrapped.parameters()) == sum(1 for _ in wrapped.module.parameters())


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module))])
def test_copies_share_the_cache_and_not_the_weights(linear, tmp_path, copied):
    module = ws.CachedModule(linear, ws.FeatureCache(tmp_path, "id"))
    x = torch.rand(4, 3)
    first = module(x, cache_ids=range(4))
    module.cache.flush()
    twin = copied(module)
    assert torch.equal(twin(x, cache_ids=range(4)), first)
    assert twin.cache.stats().misses == (4 if twin.cache is module.cache else 0)
    twin.module.weight.add_(1)
    with pytest.raises(ws.StaleCache):
        twin(x, cache_ids=range(4))
    assert torch.equal(module(x, cache_ids=range(4)), first)
    twin.cache.close()


def test_two_modules_share_a_cache_while_they_agree(linear, tmp_path):
    cache = ws.FeatureCache(tmp_path, "id")
    x = torch.rand(4, 3)
    first = ws.CachedModule(linear, cache)(x, cache_ids=range(4))
    assert torch.equal(ws.CachedModule(copy.deepcopy(linear), cache)(x, cache_ids=range(4)), first)
    assert cache.stats().hits == 4
    other = copy.deepcopy(linear)
    other.bias.add_(1)
    for _ in range(2):
        with pytest.raises(ws.StaleCache, match=r"the values of the tensor `module\.\w+` changed"):
            ws.CachedModule(other, cache)(x, cache_ids=range(4))
        cache.flush()
    cache.close()
    with pytest.raises(ws.StaleCache, match=r"the values of the tensor `module\.\w+` changed"):
        ws.CachedModule(other, ws.FeatureCache(tmp_path, "id"))(x, cache_ids=range(4))


def test_wrapped_in_a_compiled_parent(linear, tmp_path):
    class Parent(nn.Module):
        def __init__(self, features):
            super().__init__()
            self.features = features

        def forward(self, x, ids):
            return self.features(x * 1, cache_ids=ids).relu() + 1

    module = ws.CachedModule(linear, ws.FeatureCache(tmp_path, "id"))
    x = torch.rand(4, 3)
    for called in (torch.compile(Parent(module), backend="eager"), Parent(torch.compile(module, backend="eager"))):
        for ids in ([0, 1, 2, 3], [2, 3, 4, 5]):
            torch.testing.assert_close(called(x, ids)[:2], (linear(x if ids[0] == 0 else x[2:]).relu() + 1)[:2])
    assert module.cache.stats().hits > 0


def test_a_call_that_misses_beside_one_that_hits(linear, tmp_path, monkeypatch):
    """A miss in one thread once ended a hit in another, between its look at the last call and its use."""
    module = ws.CachedModule(linear, ws.FeatureCache(tmp_path, "id"))
    x = torch.rand(4, 3)
    expected = module(x, cache_ids=range(4))
    module.cache.flush()
    module(x, cache_ids=range(4))
    served = ws.CachedModule._served

    def interrupted(self, *args):
        monkeypatch.setattr(ws.CachedModule, "_served", served)
        thread = threading.Thread(target=module, args=(x + 1,), kwargs={"cache_ids": range(4, 8)})
        thread.start()
        thread.join()
        return served(self, *args)

    monkeypatch.setattr(ws.CachedModule, "_served", interrupted)
    assert torch.equal(module(x, cache_ids=range(4)), expected)


def test_threads(linear, tmp_path):
    module = ws.CachedModule(linear, ws.FeatureCache(tmp_path, "id", flush_every=8))
    data = torch.rand(64, 3)
    expected = linear(data)
    failures = []
    barrier = threading.Barrier(4)

    def work(seed):
        try:
            barrier.wait()
            generator = torch.Generator().manual_seed(seed)
            for _ in range(30):
                ids = torch.randint(0, 64, (8,), generator=generator)
                torch.testing.assert_close(module(data[ids], cache_ids=ids), expected[ids])
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    module.cache.flush()
    values, missing = module.cache.get_batch(range(64))
    assert len(missing) == 0
    torch.testing.assert_close(values, expected)
