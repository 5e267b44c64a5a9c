"""One cache at a remote, filled by several hosts."""

import logging
import os
import platform
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tests import warm
from tests.remote.conftest import s3_proxy, s3_server
from tests.remote.proxy import Proxy
from tests.remote.servers import BUCKET, S3, s3_variables
from torch import nn

import warmstore as ws
from warmstore.errors import SchemaMismatch, StaleCache
from warmstore.features.remote_binding import pull_folder, pull_parts, push_folder
from warmstore.records.format.manifest import FORMAT
from warmstore.records.index.sample_keys import as_keys
from warmstore.replicate import attach as attach_module
from warmstore.replicate.remote_copy import Remote
from warmstore.replicate.upkeep import find_host, retire

pytest.importorskip("obstore", reason="obstore is not installed: pip install 'warmstore[dev]'")

__all__ = ["s3_proxy", "s3_server"]


def values(ids: Any) -> torch.Tensor:
    return torch.arange(300.0)[None] * torch.tensor(list(ids)).float()[:, None]


def fill(cache: ws.FeatureCache, ids: range) -> None:
    cache.put_batch(list(ids), values(ids))


def frozen(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Linear(3, 4).eval().requires_grad_(False)


def has(cache: ws.FeatureCache, ids: range) -> bool:
    found, missing = cache.get_batch(list(ids))
    return not len(missing) and bool((found == values(ids)).all())


@pytest.fixture
def url(s3_server: S3, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    for name, value in s3_server.variables.items():
        monkeypatch.setenv(name, value)
    return f"s3://{BUCKET}/joining/{request.node.name}"


def test_two_hosts_fill_one_cache(url: str, tmp_path: Path) -> None:
    program = """if True:
        import sys
        import warmstore as ws
        from tests.features.test_remote_binding import fill, has
        url, folder, first = sys.argv[1], sys.argv[2], int(sys.argv[3])
        with ws.FeatureCache(folder, "net/1", flush_every=50) as cache:
            fill(cache, range(first, first + 600))
            cache.sync(url)
            print("pushed", flush=True)
            input()
            cache.sync(url)
            assert has(cache, range(1000))
    """
    hosts = [
        warm.popen(
            [sys.executable, "-c", program, url, str(tmp_path / f"host{first}"), str(first)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )
        for first in (0, 400)
    ]
    for host in hosts:
        assert host.stdout is not None
        assert host.stdout.readline() == "pushed\n"
    for host in hosts:
        host.communicate("\n")
        assert host.returncode == 0
    with ws.FeatureCache(tmp_path / "third", "net/1") as cache:
        assert cache.pull(url).chunks == 2
        assert has(cache, range(1000))
        assert (len(cache), cache.stats().entries) == (1000, 1200)
        cache.rebalance()
        assert len(cache) == 1000
        assert cache.pull(url).chunks == 0  # what was written anew is known to be here
        assert has(cache, range(1000))
    with ws.FeatureCache(tmp_path / "third", "net/1") as cache:
        assert has(cache, range(1000))


def test_what_came_from_others_is_not_pushed(url: str, tmp_path: Path) -> None:
    with ws.FeatureCache(tmp_path / "a", "net") as one, ws.FeatureCache(tmp_path / "b", "net") as other:
        fill(one, range(100))
        fill(other, range(100, 200))
        assert one.push(url).chunks == 1
        assert other.sync(url)[1].chunks == 1
        assert other.push(url).chunks == 0
        fill(other, range(200, 210))
        assert other.push(url).chunks == 1
        assert one.pull(url).records == 110
        assert has(one, range(210))
    with ws.RecordStore.open(tmp_path / "a" / "net") as store:
        assert store._manifest.format == FORMAT
        assert store.verify().ok


def test_other_modules_are_refused(url: str, tmp_path: Path) -> None:
    def filled(folder: str, seed: int) -> ws.FeatureCache:
        cache = ws.FeatureCache(tmp_path / folder, "net")
        ws.CachedModule(frozen(seed), cache)(torch.ones(2, 3), cache_ids=[1, 2])
        return cache

    with filled("a", 0) as one, filled("b", 1) as other, filled("c", 0) as same:
        one.push(url)
        for refused in (other.push, other.pull):
            with pytest.raises(StaleCache, match=r"the values of the tensor `module\.weight` changed"):
                refused(url)
        assert same.sync(url)[0].records == 2
    with ws.FeatureCache(tmp_path / "d", "net") as shaped:
        shaped.put_batch([1], torch.ones(1, 7))
        with pytest.raises((SchemaMismatch, StaleCache)):
            shaped.push(url)


def test_the_fingerprint_of_a_part_counts_whichever_of_its_segments_is_read_first(tmp_path: Path) -> None:
    for number in range(8):  # the order of segments is that of their random names
        team, folder = tmp_path / f"team{number}", tmp_path / f"a{number}"
        with ws.FeatureCache(folder, "net") as cache:
            cache.put_batch([0], torch.ones(1, 4))
            cache.push(team)
        with ws.FeatureCache(folder, "net") as cache:
            ws.CachedModule(frozen(0), cache)(torch.ones(2, 3), cache_ids=[1, 2])
            cache.push(team)
        with pytest.raises(StaleCache), ws.FeatureCache(team.as_uri(), "net", cache_dir=tmp_path / "copies") as cache:
            ws.CachedModule(frozen(1), cache)(torch.ones(2, 3), cache_ids=[1, 2])


def test_a_folder_that_takes_parts_has_the_fingerprint_of_all_of_them(tmp_path: Path) -> None:
    with ws.FeatureCache(tmp_path / "a", "net") as cache:
        cache.put_batch([0], torch.ones(1, 4))
        cache.push(tmp_path / "team")
    with ws.FeatureCache(tmp_path / "b", "net") as cache:
        ws.CachedModule(frozen(0), cache)(torch.ones(2, 3), cache_ids=[1, 2])
        cache.push(tmp_path / "team")
    remote = Remote(tmp_path / "team" / "net")
    with remote.open() as objects:
        parts = remote.part_log().read(objects).parts
        parts.sort(key=lambda part: part.manifest.metadata["fingerprint"] is not None)
        pull_parts(tmp_path / "c" / "net", parts, objects, remote)
    with pytest.raises(StaleCache), ws.FeatureCache(tmp_path / "c", "net") as cache:
        ws.CachedModule(frozen(1), cache)(torch.ones(2, 3), cache_ids=[1, 2])


def test_the_module_of_a_host_that_was_retired_does_not_count(tmp_path: Path) -> None:
    team = tmp_path / "team"

    def fill_with(seed: int, folder: str | Path, **options: Any) -> ws.PushResult:
        with ws.FeatureCache(folder, "net", **options) as cache:
            ws.CachedModule(frozen(seed), cache)(torch.ones(2, 3), cache_ids=[1, 2])
            return cache.push(team)

    fill_with(0, tmp_path / "a")
    with pytest.raises(StaleCache):
        fill_with(1, tmp_path / "b")
    retire(Remote(team / "net"), find_host(Remote(team / "net"), platform.node())[0].store)
    fill_with(1, team.as_uri(), cache_dir=tmp_path / "copy")
    assert fill_with(1, tmp_path / "b").chunks == 1
    assert pull_folder(tmp_path / "c", Remote(team / "net")).records == 4


def test_a_pull_sees_the_module_that_another_process_has_bound(tmp_path: Path) -> None:
    def fill_with(seed: int, folder: Path) -> ws.FeatureCache:
        cache = ws.FeatureCache(folder, "net")
        ws.CachedModule(frozen(seed), cache)(torch.ones(2, 3), cache_ids=[1, 2])
        return cache

    with fill_with(0, tmp_path / "a") as cache:
        cache.push(tmp_path / "team")
    with ws.FeatureCache(tmp_path / "b", "net") as cache:
        cache.put_batch([0], torch.ones(1, 4))
        cache.flush()
        fill_with(1, tmp_path / "b").close()
        with pytest.raises(StaleCache):
            cache.pull(tmp_path / "team")


def test_a_bound_holds(url: str, tmp_path: Path) -> None:
    with ws.FeatureCache(tmp_path / "a", "net") as one:
        fill(one, range(8000))
        one.push(url)
    with ws.FeatureCache(tmp_path / "b", "net", max_size="5MB") as bounded:
        fill(bounded, range(9000, 9100))
        from warmstore.errors import WriteFailed

        with pytest.raises(WriteFailed, match="max_size"):
            bounded.pull(url)
        assert has(bounded, range(9000, 9100)) or len(bounded) == 0


def test_opened_by_its_url(url: str, tmp_path: Path) -> None:
    with ws.FeatureCache(tmp_path / "a", "net/1") as one:
        fill(one, range(4000))
        one.push(url)
    options: dict[str, Any] = {"cache_dir": tmp_path / "here", "cache_size": "3MB"}
    with ws.FeatureCache(url, "net/1", **options) as cache:
        assert len(cache) == 4000
        for first in (0, 3900, 1700):
            assert has(cache, range(first, first + 50))
        fill(cache, range(5000, 5050))
        assert has(cache, range(5000, 5050))
        held = sum(path.stat().st_blocks * 512 for path in (tmp_path / "here").rglob("*.arrow"))
        assert held < 3_200_000
        assert "s3" in repr(cache)
    with ws.FeatureCache(tmp_path / "b", "net/1") as other:
        other.pull(url)
        assert has(other, range(5000, 5050))  # pushed at close
    with ws.FeatureCache(url, "net/1", **options) as cache:
        assert has(cache, range(5000, 5050))


def test_what_a_program_computed_is_pushed_when_it_ends_without_close(url: str, tmp_path: Path) -> None:
    program = """if True:
        import sys
        import warmstore as ws
        from tests.features.test_remote_binding import fill
        cache = ws.FeatureCache(sys.argv[1], "net/1", cache_dir=sys.argv[2])
        fill(cache, range(50))
    """
    command = [sys.executable, "-c", program, url, str(tmp_path / "a")]
    done = warm.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    with ws.FeatureCache(url, "net/1", cache_dir=tmp_path / "b") as cache:
        assert has(cache, range(50))


def test_a_remote_that_dies_is_a_miss(
    url: str, s3_proxy: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with ws.FeatureCache(tmp_path / "a", "net") as one:
        fill(one, range(4000))
        one.push(url)
    for name, value in s3_variables(s3_proxy.url).items():
        monkeypatch.setenv(name, value)
    with ws.FeatureCache(url, "net", cache_dir=tmp_path / "here") as cache, caplog.at_level(logging.WARNING):
        assert has(cache, range(100))
        s3_proxy.always = "cut"
        assert len(cache.get_batch(list(range(3000, 3100)))[1]) == 100
        assert has(cache, range(100))
        assert cache.stats().misses == 100
        fill(cache, range(3000, 3100))
        assert has(cache, range(3000, 3100))
        assert sum("is computed" in record.message for record in caplog.records) == 1
    assert any("until the next push" in record.message for record in caplog.records)
    with ws.FeatureCache(url, "net", cache_dir=tmp_path / "here") as cache:
        assert has(cache, range(3000, 3100))
        s3_proxy.always = None
    assert "a-secret-key" not in caplog.text


def test_a_cache_opens_while_its_remote_is_dead(
    url: str, s3_proxy: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Headers and keys are never evicted, however small the cache is."""
    with ws.FeatureCache(tmp_path / "a", "net", flush_every=100) as one:
        for first in range(0, 4000, 100):
            fill(one, range(first, first + 100))
            one.flush()
        one.push(url)
    for name, value in s3_variables(s3_proxy.url).items():
        monkeypatch.setenv(name, value)
    options: dict[str, Any] = {"cache_dir": tmp_path / "here", "cache_size": "400KB"}
    with ws.FeatureCache(url, "net", **options) as cache:
        for first in range(0, 4000, 100):
            assert has(cache, range(first, first + 50))
    s3_proxy.always = "cut"
    try:
        with ws.FeatureCache(url, "net", **options) as cache:
            assert len(cache) == 4000
            assert has(cache, range(3900, 3950))
            assert len(cache.get_batch(list(range(50)))[1]) == 50
            assert not len(cache._session.missing(as_keys(list(range(4000)))))
    finally:
        s3_proxy.always = None
    held = sum(path.stat().st_blocks * 512 for path in (tmp_path / "here").rglob("*.arrow"))
    assert held < 1_000_000


def test_own_chunks_count_in_the_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("warmstore.replicate.block_cache._LOOK", 0.0)
    url = f"file://{tmp_path / 'remote'}"
    with ws.FeatureCache(tmp_path / "a", "net") as one:
        fill(one, range(4000))
        one.push(url)
    with ws.FeatureCache(url, "net", cache_dir=tmp_path / "here", cache_size="3MB") as cache:
        fill(cache, range(5000, 6500))  # 1.8 MB
        cache.flush()
        for first in range(0, 4000, 50):
            assert has(cache, range(first, first + 50))
        held = sum(path.stat().st_blocks * 512 for path in (tmp_path / "here").rglob("*.arrow"))
        assert held < 3_400_000


def test_a_chunk_that_another_process_removes_is_not_weighed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    glob = Path.glob

    def listed(folder: Path, pattern: str) -> list[Path]:
        return [*glob(folder, pattern), folder / "000077.arrow"] if pattern == "*.arrow" else [*glob(folder, pattern)]

    with ws.FeatureCache(tmp_path / "a", "net") as one:
        fill(one, range(100))
        one.push(tmp_path / "team")
    with ws.FeatureCache((tmp_path / "team").as_uri(), "net", cache_dir=tmp_path / "here") as cache:
        monkeypatch.setattr(Path, "glob", listed)
        assert has(cache, range(100))


def ones(*values: float) -> torch.Tensor:
    return torch.tensor(values)[:, None].expand(-1, 4)


@pytest.mark.parametrize("where", ["folder", "url"])
def test_what_was_put_last_is_what_others_get(where: str, tmp_path: Path) -> None:
    """Whatever the order in which the remote lists the chunks."""
    url, options = f"file://{tmp_path / 'remote'}", {"cache_dir": tmp_path / "a"} if where == "url" else {}
    for number in range(4):
        with ws.FeatureCache(url if where == "url" else tmp_path / "a", f"net{number}", **options) as cache:
            for value in range(5):
                cache.put_batch([1], ones(value))
                cache.push(url)
        with ws.FeatureCache(tmp_path / "b", f"net{number}") as other:
            other.pull(url)
            assert other[1].tolist() == [4.0] * 4


def test_what_was_put_last_by_two_processes_at_a_url(tmp_path: Path) -> None:
    """The last value is in a chunk that was begun before that of the first one."""
    url, options = f"file://{tmp_path / 'remote'}", {"cache_dir": tmp_path / "a"}
    with ws.FeatureCache(url, "net", **options) as first, ws.FeatureCache(url, "net", **options) as second:
        for cache, ids, value in ((first, [900], 0.0), (second, [1, 2], 1.0), (first, [1], 2.0)):
            cache.put_batch(ids, ones(*[value] * len(ids)))
            cache.flush()
    with ws.FeatureCache(tmp_path / "b", "net") as other:
        other.pull(url)
        assert [float(other[each][0]) for each in (900, 1, 2)] == [0.0, 2.0, 1.0]
    with ws.FeatureCache(url, "net", **options) as again:
        rows = again._session.version.entries
        again.push()
        assert again._session.version.entries == rows


@pytest.mark.parametrize("where", ["folder", "url"])
def test_what_another_process_has_put_last_is_pushed(where: str, tmp_path: Path) -> None:
    """By one that has not looked for its rows."""
    url, options = f"file://{tmp_path / 'remote'}", {"cache_dir": tmp_path / "a"} if where == "url" else {}
    place = url if where == "url" else tmp_path / "a"
    with ws.FeatureCache(place, "net", **options) as first, ws.FeatureCache(place, "net", **options) as second:
        for cache, ids, value in ((first, [900], 0.0), (second, [1, 2], 1.0), (first, [1], 2.0)):
            cache.put_batch(ids, ones(*[value] * len(ids)))
            cache.flush()
        first._session.version.settled_store()  # as another process ends that cannot push
        second.push(url)
        with ws.FeatureCache(tmp_path / "b", "net") as other:
            other.pull(url)
            assert other[1].tolist() == [2.0] * 4


def test_a_folder_is_pushed_with_the_last_values(tmp_path: Path) -> None:
    """As `warmstore store push` does."""
    remote = Remote(tmp_path / "remote").below("net")
    with ws.FeatureCache(tmp_path / "a", "net") as first, ws.FeatureCache(tmp_path / "a", "net") as second:
        for cache, ids, value in ((first, [900], 0.0), (second, [1, 2], 1.0), (first, [1], 2.0)):
            cache.put_batch(ids, ones(*[value] * len(ids)))
            cache.flush()
        del first[2]
    push_folder(tmp_path / "a" / "net", remote, progress=False)
    with ws.FeatureCache(tmp_path / "b", "net") as other:
        assert other.pull(tmp_path / "remote").records == 2
        assert other[1].tolist() == [2.0] * 4
        assert sorted(other) == [1, 900]


@pytest.mark.parametrize("seed", range(6))
def test_what_a_host_has_put_stays_when_it_pulls(seed: int, tmp_path: Path) -> None:
    """Also for whoever has the cache open, and for an index that is built anew. What it has deleted may come back."""
    choose, url, expected, own = random.Random(seed), f"file://{tmp_path / 'remote'}", {}, set()

    def some() -> list[int]:
        return choose.sample(range(12), 4)

    def check(cache: ws.FeatureCache) -> None:
        assert {each: int(cache[each][0]) for each in cache} == expected

    with ws.FeatureCache(tmp_path / "a", "net") as cache, ws.FeatureCache(tmp_path / "a", "net") as second:
        for step in range(16):
            ids, what = some(), choose.choice(["put", "delete", "pull"])
            if what == "put":
                cache.put_batch(ids, ones(*[step] * 4))
                cache.flush()
                own |= {*ids}
                expected |= dict.fromkeys(ids, step)
            elif what == "delete":
                for each in expected.keys() & ids:
                    del cache[each]
                    del expected[each]
                    own.discard(each)
            else:
                with ws.FeatureCache(tmp_path / f"host{step}", "net") as other:
                    other.put_batch(ids, ones(*[step] * 4))
                    other.push(url)
                cache.pull(url)
                expected |= dict.fromkeys({*ids} - own, step)
            check(cache)
            second.get_batch([99])  # a miss looks for new rows
            check(second)
    for path in (tmp_path / "a" / "net").glob("keys-*"):
        path.unlink()
    with ws.FeatureCache(tmp_path / "a", "net") as cache:
        check(cache)
        cache.rebalance()
        check(cache)
        assert cache._session.version.entries == len(expected)


@pytest.mark.parametrize("options", [{"read_only": True}, {"writer_ranks": [1]}])
def test_who_stores_nothing_gets_what_others_have_pushed(options: dict[str, Any], tmp_path: Path) -> None:
    url = f"file://{tmp_path / 'remote'}"
    for first in (0, 100):
        pushed = sorted((tmp_path / "remote").rglob("*"))
        with ws.FeatureCache(url, "net", cache_dir=tmp_path / "b", **options) as cache:
            assert len(cache) == first
        assert sorted((tmp_path / "remote").rglob("*")) == pushed
        with ws.FeatureCache(tmp_path / "a", "net") as other:
            fill(other, range(first, first + 100))
            other.push(tmp_path / "remote")
        with ws.FeatureCache(url, "net", cache_dir=tmp_path / "b", **options) as cache:
            assert has(cache, range(first + 100))


@pytest.mark.parametrize("is_there", [False, True])
def test_a_pull_into_a_folder_that_is_only_read_is_refused(is_there: bool, tmp_path: Path) -> None:
    with ws.FeatureCache(tmp_path / "a", "net") as other:
        fill(other, range(10))
        other.push(tmp_path / "remote")
    if is_there:
        with ws.FeatureCache(tmp_path / "b", "net") as cache:
            fill(cache, range(10, 20))
    with (
        ws.FeatureCache(tmp_path / "b", "net", read_only=True) as cache,
        pytest.raises(ws.ReadOnly, match="only read by this process; open it for writing to pull"),
    ):
        cache.pull(tmp_path / "remote")


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to become somebody else")
def test_who_stores_nothing_and_has_no_local_folder_is_told_so(seen_by_all: Path) -> None:
    with ws.FeatureCache(seen_by_all / "a", "net") as other:
        fill(other, range(10))
        other.push(seen_by_all / "remote")
    program = """if True:
        import os, sys
        import warmstore as ws
        from tests.features.test_remote_binding import has
        os.setuid(65534)
        with ws.FeatureCache(sys.argv[1], "net", cache_dir=sys.argv[2], read_only=True) as cache:
            assert len(cache.get_batch([1, 2])[1]) == 2
    """
    command = [sys.executable, "-c", program, f"file://{seen_by_all / 'remote'}", str(seen_by_all / "b")]
    done = warm.run(command, cwd=Path(__file__).parents[2], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Permission denied" in done.stderr
    assert "is computed" in done.stderr


@pytest.mark.parametrize("moment", ["create_chunk", "fetch_chunks", "new_entry"])
def test_a_pull_while_another_process_rebalances(moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for host, first in (("a", 0), ("c", 100)):
        with ws.FeatureCache(tmp_path / host, "net") as cache:
            fill(cache, range(first, first + 100))
            cache.push(tmp_path / "remote")
    called, function = [0], getattr(attach_module, moment)

    def rebalanced_first(*arguments: Any, **options: Any) -> Any:
        called[0] += 1
        if called[0] <= 3:
            with ws.FeatureCache(tmp_path / "b", "net") as other:
                other.rebalance(progress=False)
        return function(*arguments, **options)

    monkeypatch.setattr(attach_module, moment, rebalanced_first)
    with ws.FeatureCache(tmp_path / "b", "net") as cache:
        fill(cache, range(200, 300))
        cache.flush()
        assert cache.pull(tmp_path / "remote").records == 200
        assert has(cache, range(300))
        assert cache.pull(tmp_path / "remote").records == 0
    with ws.FeatureCache(tmp_path / "b", "net") as cache:
        assert has(cache, range(300))
    assert called[0] > 3


def test_a_bounded_cache_takes_nothing_away_from_a_remote(tmp_path: Path) -> None:
    with ws.FeatureCache(tmp_path / "a", "net", max_size="4MB") as bounded:
        for first in range(0, 4000, 400):
            fill(bounded, range(first, first + 400))
            bounded.push(tmp_path / "remote")
        kept = len(bounded)
        assert kept < 3600
        bounded.put_batch([3999], values([7]))
        bounded.push(tmp_path / "remote")
        assert len(bounded) > kept - 400
    with ws.FeatureCache(tmp_path / "b", "net") as other:
        other.pull(tmp_path / "remote")
        assert has(other, range(3999))
        assert bool((other[3999] == values([7])[0]).all())
