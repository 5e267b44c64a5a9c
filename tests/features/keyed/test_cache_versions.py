"""Versions of one cache: other weights, code or settings under the same id."""

import copy
import gc
import pickle
import threading
from pathlib import Path

import pytest
import torch
from torch import nn

import warmstore as ws
from warmstore.features.keyed.cache_versions import digest

X = torch.arange(12.0).reshape(4, 3)
IDS = range(4)


class Scale(nn.Module):
    """Multiplies by a weight, and counts the rows it was given."""

    def __init__(self, factor):
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(float(factor)), requires_grad=False)
        self.rows = 0

    def forward(self, x, power=1):
        self.rows += len(x)
        return (x * self.factor) ** power


class Root(Scale):
    """Fails for negative inputs."""

    def forward(self, x):
        if (x < 0).any():
            raise ValueError("negative")
        return super().forward(x).sqrt()


def wrap(folder, factor, **options):
    module = factor if isinstance(factor, nn.Module) else Scale(factor)
    return ws.CachedModule(module, ws.FeatureCache(folder, "id", **{"versions": "new", **options}))


def folders(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("versions", ["raise", "new", "ignore"])
def test_other_weights_in_another_run(tmp_path, versions):
    with wrap(tmp_path, 2).cache as cache:
        ws.CachedModule(Scale(2), cache)(X, cache_ids=IDS)
    module = wrap(tmp_path, 3, versions=versions)
    if versions == "raise":
        with pytest.raises(ws.StaleCache, match=r"the values of the tensor `module\.factor` changed.*versions='new'"):
            module(X, cache_ids=IDS)
    else:
        assert torch.equal(module(X, cache_ids=IDS), X * (3 if versions == "new" else 2))
    module.cache.close()
    assert len(folders(tmp_path)) == (2 if versions == "new" else 1)


def test_each_run_finds_its_own_again(tmp_path):
    for again in range(3):
        for factor in (2, 3, 4):
            module = wrap(tmp_path, factor)
            assert torch.equal(module(X, cache_ids=IDS), X * factor)
            assert module.module.rows == (0 if again else 4)
            assert torch.equal(module.cache.get_batch(IDS)[0], X * factor)
            module.cache.close()
    assert len(folders(tmp_path)) == 3


def test_the_folder_is_named_as_the_format_says(tmp_path):
    for factor in (2, 3):
        with wrap(tmp_path, factor).cache as cache:
            ws.CachedModule(Scale(factor), cache)(X, cache_ids=IDS)
    with ws.FeatureCache(tmp_path, "id", versions="new") as cache:
        first, second = cache.stats().versions
    assert (first.name, second.name) == ("id", f"id@{digest(second.fingerprint)}")
    assert (first.entries, second.entries) == (4, 4)
    assert first.fingerprint["facts"]["module.factor"] != second.fingerprint["facts"]["module.factor"]
    assert second.bytes == sum(path.stat().st_size for path in (tmp_path / second.name).rglob("*") if path.is_file())
    assert second.name.endswith(second.fingerprint["digest"][:16])
    assert digest({"b": "2", "a": "1"}) == digest({"a": "1", "b": "2"}) == "3c38c2a61ecf0328"  # of older rules


class TestAfterWrapping:
    def test_changed_weights_and_back(self, tmp_path):
        module = wrap(tmp_path, 2)
        for _ in range(2):
            for factor in (2, 3):
                module.module.factor.fill_(factor)
                assert torch.equal(module(X, cache_ids=IDS), X * factor)
        assert module.module.rows == 8
        module.cache.flush()
        stats = module.cache.stats()
        assert (stats.entries, stats.hits, stats.misses, len(stats.versions)) == (8, 8, 8, 2)
        assert len(module.cache) == 4  # of the version that is open
        assert stats.bytes == sum(version.bytes for version in stats.versions)
        module.cache.close()
        assert wrap(tmp_path, 3)(X, cache_ids=IDS).equal(X * 3)

    def test_other_arguments_and_autocast(self, tmp_path):
        module = wrap(tmp_path, 2)
        for _ in range(2):
            assert torch.equal(module(X, cache_ids=IDS, power=1), X * 2)
            assert torch.equal(module(X, cache_ids=IDS, power=2), (X * 2) ** 2)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                module(X, cache_ids=IDS, power=1)
        assert module.module.rows == 12

    def test_ignored(self, tmp_path):
        module = wrap(tmp_path, 2, versions="ignore")
        module(X, cache_ids=IDS)
        module.module.factor.fill_(3)
        assert torch.equal(module(X, cache_ids=[*range(3), 9]), torch.cat([X[:3] * 2, X[3:] * 3]))

    def test_weights_that_change_as_it_computes(self, tmp_path):
        module = nn.BatchNorm1d(3).requires_grad_(False)
        module = ws.CachedModule(module, ws.FeatureCache(tmp_path, "id", versions="new"), enforce_stateless=False)
        with pytest.raises(ws.StaleCache, match="while it computed"):
            module(X, cache_ids=IDS)
        module.cache.flush()
        assert not folders(tmp_path)

    def test_two_modules_share_one_cache(self, tmp_path):
        cache = ws.FeatureCache(tmp_path, "id", versions="new")
        one, other = (ws.CachedModule(Scale(factor), cache) for factor in (2, 3))
        for _ in range(2):
            assert torch.equal(one(X, cache_ids=IDS), X * 2)
            assert torch.equal(other(X, cache_ids=IDS), X * 3)
        assert (one.module.rows, other.module.rows) == (4, 4)

    def test_a_first_call_that_fails(self, tmp_path):
        """Its version was then taken for that of any module, and its outputs went into the folder of the other one."""
        with ws.FeatureCache(tmp_path, "id", versions="new") as cache:
            one, other = (ws.CachedModule(Root(factor), cache) for factor in (2, 3))
            one(X, cache_ids=IDS)
            with pytest.raises(ValueError, match="negative"):
                other(-X, cache_ids=IDS)
            other(X, cache_ids=IDS)
        for factor in (2, 3):
            module = wrap(tmp_path, Root(factor))
            assert torch.equal(module(X, cache_ids=IDS), (X * factor).sqrt())
            assert module.module.rows == 0

    def test_a_first_call_that_fails_beside_another_version(self, tmp_path):
        """The next module was stored in the folder of the one that had failed, which could not be used any more."""
        wrap(tmp_path, Root(2))(X, cache_ids=IDS)
        with ws.FeatureCache(tmp_path, "id", versions="new") as cache:
            with pytest.raises(ValueError, match="negative"):
                ws.CachedModule(Root(3), cache)(-X, cache_ids=IDS)
            assert torch.equal(ws.CachedModule(Root(4), cache)(X, cache_ids=IDS), (X * 4).sqrt())
        for factor in (2, 3, 4):
            module = wrap(tmp_path, Root(factor))
            assert torch.equal(module(X, cache_ids=IDS), (X * factor).sqrt())

    @pytest.mark.parametrize("copied", [copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module))])
    def test_copies_bind_for_themselves(self, tmp_path, copied):
        """A copy of a module whose weights had changed once took another version for its own."""
        module = wrap(tmp_path, 2)
        module(X, cache_ids=IDS)
        module.module.factor.fill_(3)
        module(X, cache_ids=IDS)
        module.cache.flush()
        twin = copied(module)
        assert torch.equal(twin(X, cache_ids=IDS), X * 3)
        twin.module.factor.fill_(2)
        assert torch.equal(twin(X, cache_ids=IDS), X * 2)
        assert twin.module.rows == 8
        twin.cache.close()


class TestOpenedTogether:
    """Nothing is on the disk when two processes bind; whoever commits first is the first version."""

    @pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
    def test_whoever_commits_first(self, tmp_path, order):
        modules = [wrap(tmp_path, factor) for factor in (2, 3, 3)]
        for module in modules:
            module(X[:2], cache_ids=IDS[:2])
        for at in order:
            modules[at].cache.flush()
        for module, factor in zip(modules, (2, 3, 3), strict=True):
            assert torch.equal(module(X, cache_ids=IDS), X * factor)
            module.cache.close()
        assert len(folders(tmp_path)) == 2
        for factor in (2, 3):
            module = wrap(tmp_path, factor)
            assert torch.equal(module(X, cache_ids=IDS), X * factor)
            assert module.module.rows == 0

    def test_found_by_looking(self, tmp_path):
        one, other = wrap(tmp_path, 2), wrap(tmp_path, 3)
        one(X, cache_ids=IDS)
        other(X[:1], cache_ids=[0])
        one.cache.flush()
        assert torch.equal(other(X, cache_ids=IDS), X * 3)

    def test_written_in_the_background(self, tmp_path):
        modules = [wrap(tmp_path, factor, flush_every=1) for factor in (2, 3, 4)]
        for at in IDS:
            for module in modules:
                module(X[at : at + 1], cache_ids=[at])
        for module in modules:
            module.cache.close()
        for factor in (2, 3, 4):
            assert torch.equal(wrap(tmp_path, factor)(X, cache_ids=IDS), X * factor)
        assert len(folders(tmp_path)) == 3


def test_first_version_removed_leaves_the_others(tmp_path):
    for factor in (2, 3, 2):
        module = wrap(tmp_path, factor)
        module(X, cache_ids=IDS)
        module.cache.close()
    (tmp_path / "id").rename(tmp_path / "gone")
    for factor, rows in ((3, 0), (2, 4), (3, 0), (2, 0)):
        module = wrap(tmp_path, factor)
        assert torch.equal(module(X, cache_ids=IDS), X * factor)
        assert module.module.rows == rows
        module.cache.close()


class TestFilledByHand:
    def test_belongs_to_the_first_module(self, tmp_path):
        with ws.FeatureCache(tmp_path, "id") as cache:
            cache.put_batch([0], X[:1] * 2)
        for factor, rows in ((2, 3), (3, 4)):
            module = wrap(tmp_path, factor)
            assert torch.equal(module(X, cache_ids=IDS), X * factor)
            assert module.module.rows == rows
            module.cache.close()

    def test_and_so_it_does_while_it_waits(self, tmp_path):
        module = wrap(tmp_path, 2)
        module.cache.put_batch([0], X[:1] * 2)
        assert torch.equal(module(X, cache_ids=IDS), X * 2)
        assert module.module.rows == 3

    def test_rows_that_wait_are_kept_where_they_were_put(self, tmp_path):
        with wrap(tmp_path, 2).cache as cache:
            ws.CachedModule(Scale(2), cache)(X, cache_ids=IDS)
        module = wrap(tmp_path, 3)
        module.cache.put_batch([9], X[:1])
        assert torch.equal(module(X, cache_ids=[9, 1, 2, 3]), X * 3)
        module.cache.close()
        with ws.FeatureCache(tmp_path, "id") as cache:
            assert torch.equal(cache.get_batch([9])[0], X[:1])


def test_read_only_finds_its_version_and_makes_none(tmp_path):
    for factor in (2, 3):
        module = wrap(tmp_path, factor)
        module(X[:2], cache_ids=IDS[:2])
        module.cache.close()
    before = folders(tmp_path)
    for factor, rows in ((2, 2), (3, 2), (4, 4)):
        module = wrap(tmp_path, factor, read_only=True)
        assert torch.equal(module(X, cache_ids=IDS), X * factor)
        assert module.module.rows == rows
        module.cache.close()
    assert folders(tmp_path) == before


def test_deleted_flushes_all_versions(tmp_path):
    module = wrap(tmp_path, 2)
    module(X, cache_ids=IDS)
    module.module.factor.fill_(3)
    module(X, cache_ids=IDS)
    del module
    for factor in (2, 3):
        module = wrap(tmp_path, factor)
        module(X, cache_ids=IDS)
        assert module.module.rows == 0


class TestPathsThatCannotBe:
    def test_id_with_no_room_for_the_suffix(self, tmp_path):
        ws.FeatureCache(tmp_path, "x" * 183, versions="new").close()
        ws.FeatureCache(tmp_path, "x" * 184).close()
        with pytest.raises(ValueError, match="at most 183"):
            ws.FeatureCache(tmp_path, "x" * 184, versions="new")

    def test_something_else_lies_there(self, tmp_path):
        for factor in (2, 3):
            module = wrap(tmp_path, factor)
            module(X, cache_ids=IDS)
            module.cache.close()
        (other,) = (path for path in tmp_path.iterdir() if "@" in path.name)
        other.rename(tmp_path / "gone")
        other.write_text("mine")
        module = wrap(tmp_path, 3)
        assert torch.equal(module(X, cache_ids=IDS), X * 3)
        with pytest.raises(ws.StoreExists, match="is a file"):
            module.cache.flush()
        other.unlink()
        module.cache.close()
        assert len(folders(tmp_path)) == 3

    def test_ids_do_not_meet_versions(self, tmp_path):
        with ws.FeatureCache(tmp_path, "id@0123456789abcdef") as cache:
            cache.put_batch([1], X[:1])
        assert ws.FeatureCache(tmp_path, "id").stats().versions == ()


RACE = """
import multiprocessing, sys
import torch
import warmstore as ws
from test_versions_module import Weighted

torch.set_num_threads(1)

def work(factor, barrier):
    module = ws.CachedModule(Weighted(factor), ws.FeatureCache(sys.argv[1] + "/c", "id", versions="new", flush_every=2))
    barrier.wait(300)
    for at in range(20):
        x = torch.full((1, 2), float(at))
        assert torch.equal(module(x, cache_ids=[at]), x * factor)
    module.cache.close()

if __name__ == "__main__":
    context = multiprocessing.get_context("fork")
    for again in range(2):
        barrier = context.Barrier(6)
        workers = [context.Process(target=work, args=(2 + at % 3, barrier)) for at in range(6)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
            assert worker.exitcode == 0
    for factor in (2, 3, 4):
        module = ws.CachedModule(Weighted(factor), ws.FeatureCache(sys.argv[1] + "/c", "id", versions="new"))
        x = torch.arange(20.0)[:, None].repeat(1, 2)
        assert torch.equal(module(x, cache_ids=range(20)), x * factor)
        assert Weighted.rows == 0, Weighted.rows
    print(len(module.cache.stats().versions))
"""


@pytest.mark.slow
def test_six_processes_with_three_fingerprints(run_script, tmp_path):
    (tmp_path / "test_versions_module.py").write_text(
        "import torch\n"
        "class Weighted(torch.nn.Module):\n"
        "    rows = 0\n"
        "    def __init__(self, factor):\n"
        "        super().__init__()\n"
        "        self.register_buffer('factor', torch.tensor(float(factor)))\n"
        "    def forward(self, x):\n"
        "        Weighted.rows += len(x)\n"
        "        return x * self.factor\n"
    )
    assert run_script(RACE) == "3\n"


def test_versions_that_were_left_leak_no_descriptors(tmp_path):
    for factor in (2, 3):
        wrap(tmp_path, factor)(X, cache_ids=IDS)
    gc.collect()
    before = len(list(Path("/dev/fd").iterdir()))
    for _ in range(5):
        module = wrap(tmp_path, 3)
        assert torch.equal(module(X, cache_ids=IDS), X * 3)
        assert module.module.rows == 0
        module.cache.close()
    del module
    gc.collect()
    assert len(list(Path("/dev/fd").iterdir())) <= before


def test_threads_with_two_modules(tmp_path):
    cache = ws.FeatureCache(tmp_path, "id", versions="new", flush_every=4)
    modules = [ws.CachedModule(Scale(factor), cache) for factor in (2, 3)]
    failures = []

    def work(module, factor):
        try:
            for at in range(40):
                x = torch.full((2, 3), float(at))
                assert torch.equal(module(x, cache_ids=[at, 100 + at]), x * factor)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=pair) for pair in zip(modules, (2, 3), strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    cache.flush()
    for module, factor in zip(modules, (2, 3), strict=True):
        assert module(torch.zeros(1, 3), cache_ids=[7]).tolist() == [[7.0 * factor] * 3]
    cache.close()
