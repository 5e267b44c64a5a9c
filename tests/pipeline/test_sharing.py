"""Two machines that share decoded samples: what one has pushed, the other pulls and does not compute."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.pipeline import encoded
from tests.pipeline.encoded import Track, seen
from tests.pipeline.functions import make
from tests.pipeline.making import MB, expected, plan_of, same, take_bytes_away, watched
from tests.slow import thinned

import warmstore as ws
from warmstore.errors import Damaged, StaleCache
from warmstore.pipeline.encoders.registry import REGISTRY
from warmstore.pipeline.plan.plan import Plan
from warmstore.pipeline.sharing import push_folder
from warmstore.records.write.chunk_eviction import evict
from warmstore.replicate import push_part as push_module
from warmstore.replicate.parts import PartLog
from warmstore.replicate.remote_copy import Remote
from warmstore.replicate.remote_diff import Local
from warmstore.storage.files import Files
from warmstore.storage.lease import is_locked, lock_path

pytest.importorskip("obstore", reason="obstore is not installed: pip install 'warmstore[dev]'")
pytestmark = [pytest.mark.forks, pytest.mark.remotes]

calls = [0]


def counted(index: int, kind: str) -> Any:
    calls[0] += 1
    return make(index, kind)


def large(index: int) -> Any:
    calls[0] += 1
    return np.random.default_rng(index).integers(0, 256, 20_000, np.uint8)


def widened(value: Any) -> Any:
    return {"value": value, "more": np.arange(100)}


def plan_for(pipe: Any, folder: Path, **options: Any) -> Plan:
    return plan_of(pipe, [(1, "disk", "raw")], [len(pipe)], folder=folder, **options)


def filled(pipe: Any, folder: Path, **options: Any) -> Plan:
    """The plan of a machine that has filled its tiers."""
    plan = plan_for(pipe, folder, **options)
    before = calls[0]
    pipe.fill(plan, workers=0, progress=False)
    calls[0] = before
    return plan


def epoch(pipe: Any, plan: Plan) -> int:
    """How many samples an epoch computes; its batches are those of the uncached pipeline."""
    before = calls[0]
    with pipe.loader(plan, 8, workers=0) as loader:
        got = list(loader)
    made = calls[0] - before
    wanted = list(expected(pipe, 8, 0, 0))
    assert len(got) == len(wanted)
    assert all(map(same, got, wanted))
    calls[0] = before
    return made


@pytest.mark.parametrize("kind", thinned(3, ["array", "varying", "dict", "mixed", "crops", "bytes", "turned"]))
@pytest.mark.parametrize("codec", ["raw", "zstd"])
def test_what_is_pulled_is_not_computed(tmp_path: Path, kind: str, codec: str) -> None:
    pipe = ws.Pipeline(range(40)).step(counted, kind=kind)
    one, other = (plan_of(pipe, [(1, "disk", codec)], [40], folder=tmp_path / host) for host in ("one", "other"))
    before = calls[0]
    pipe.fill(one, workers=0, progress=False)
    calls[0] = before
    assert pipe.push(tmp_path / "remote", one).chunks
    pulled = pipe.pull(tmp_path / "remote", other)
    assert calls[0] == before
    assert pulled.records == 40
    assert epoch(pipe, other) == 0
    assert pipe.pull(tmp_path / "remote", other).records == 0
    assert pipe.push(tmp_path / "remote", other).chunks == 0  # what came from others is not pushed


@pytest.mark.parametrize("kind", thinned(2, ["array", "varying", "dict", "mixed"]))
def test_plans_of_other_codecs_share_samples(tmp_path: Path, kind: str) -> None:
    """Raw and compressed samples are often equally fast, so two machines may plan one each."""
    pipe = ws.Pipeline(range(40)).step(counted, kind=kind).step(widened)
    one, other = (plan_of(pipe, [(2, "disk", codec)], [40], folder=tmp_path / codec) for codec in ("raw", "zstd"))
    before = calls[0]
    pipe.fill(one, workers=0, progress=False)
    calls[0] = before
    pipe.push(tmp_path / "remote", one)
    assert pipe.pull(tmp_path / "remote", other).records == 40
    assert calls[0] == before
    assert epoch(pipe, other) == 0
    (version,) = (tmp_path / "zstd" / "warmstore-samples").glob("2-zstd-*/about.json")
    with ws.RecordStore.open(version.parent / ("others" if kind == "mixed" else "alike")) as store:
        assert "zstd" in repr(store.fields)


def test_machines_whose_samples_look_alike_in_other_ways(tmp_path: Path) -> None:
    """The first samples of a machine decide how its samples lie. Rows of another layout are copied one by one."""

    def shaped(index: int) -> Any:
        return {"x": np.full(3 if index < 30 else index, index), "y": np.arange(100.0)}

    whole = ws.Pipeline(list(range(60))).step(shaped)
    part = ws.Pipeline(list(range(30))).step(shaped)
    one, other = plan_for(part, tmp_path / "one"), plan_for(whole, tmp_path / "other")
    part.fill(one, workers=0, progress=False)
    assert part.push(tmp_path / "remote", one).chunks == 1
    some = ws.Pipeline(list(range(28, 60))).step(shaped)
    some.fill(plan_for(some, tmp_path / "other"), workers=0, progress=False)
    pulled = whole.pull(tmp_path / "remote", other)
    assert (pulled.chunks, pulled.records) == (0, 28)
    assert epoch(whole, other) == 0
    assert whole.fill(other, workers=0, progress=False).computed == 0
    whole.push(tmp_path / "remote", other)
    third = plan_for(whole, tmp_path / "third")
    assert whole.pull(tmp_path / "remote", third).records == 60
    assert whole.fill(third, workers=0, progress=False).computed == 0
    assert epoch(whole, third) == 0


def test_what_is_here_is_not_fetched_again(tmp_path: Path) -> None:
    some, whole = (ws.Pipeline(list(range(count))).step(large) for count in (150, 400))
    filled(some, tmp_path / "other")
    plan = filled(whole, tmp_path / "one", disk=16 * MB)
    whole.push(tmp_path / "remote", plan)
    other = plan_for(whole, tmp_path / "other")
    pulled = whole.pull(tmp_path / "remote", other)
    assert 250 <= pulled.records < 300
    assert pulled.size < 300 * 20_200
    assert epoch(whole, other) == 0


def test_memory_holds_what_was_pulled_until_it_is_closed(tmp_path: Path) -> None:
    pipe = ws.Pipeline(range(40)).step(counted, kind="array")
    pipe.push(tmp_path / "remote", filled(pipe, tmp_path / "one"))
    plan = plan_of(pipe, [(1, "memory", "raw")], [40], memory=8 * MB)
    assert pipe.pull(tmp_path / "remote", plan).records == 40
    assert epoch(pipe, plan) == 0
    pipe.close()
    assert epoch(pipe, plan) > 0


def test_a_small_budget_takes_what_fits(tmp_path: Path) -> None:
    pipe = ws.Pipeline(list(range(400))).step(large)
    pipe.push(tmp_path / "remote", filled(pipe, tmp_path / "one"))
    other = plan_for(pipe, tmp_path / "other", disk=3 * MB)
    with watched(tmp_path / "other") as most:
        assert 100 < pipe.pull(tmp_path / "remote", other).records < 160
    assert 2.5 * MB < most() <= 3 * MB
    made = epoch(pipe, other)
    assert 240 <= made < 300


def test_a_plan_of_a_part_takes_what_is_there(tmp_path: Path) -> None:
    """A budget for 30 of 100 samples holds those that the remote has."""
    some, whole = ws.Pipeline(list(range(60, 100))).step(large), ws.Pipeline(list(range(100))).step(large)
    some.push(tmp_path / "remote", filled(some, tmp_path / "one"))
    plan = plan_of(whole, [(1, "disk", "raw")], [30], folder=tmp_path / "other")
    whole.pull(tmp_path / "remote", plan)
    assert epoch(whole, plan) <= 70
    assert whole.fill(plan, workers=0, progress=False).computed == 0


def test_what_no_plan_needs_makes_room(tmp_path: Path) -> None:
    pipe, old = (ws.Pipeline(list(range(first, first + 200))).step(large) for first in (0, 1000))
    pipe.push(tmp_path / "remote", filled(pipe, tmp_path / "one"))
    before = filled(old, tmp_path / "other", disk=5 * MB)
    other = plan_for(pipe, tmp_path / "other", disk=5 * MB)
    with old.loader(before, 8, workers=0) as loader:
        list(loader)
        assert pipe.pull(tmp_path / "remote", other).records < 60  # nothing that a process uses goes
        assert int((loader._source.cached.open().rows >= 0).sum()) == 200
    with watched(tmp_path / "other") as most:
        assert pipe.pull(tmp_path / "remote", other).records > 130
    assert most() <= 5 * MB
    assert epoch(pipe, other) == 0


def test_what_was_evicted_can_be_pulled_again(tmp_path: Path) -> None:
    pipe, new = (ws.Pipeline(list(range(first, first + 200))).step(large) for first in (0, 1000))
    remote, options = tmp_path / "remote", {"disk": 5 * MB}
    one = filled(pipe, tmp_path / "one", **options)
    pipe.push(remote, one)
    other = plan_for(pipe, tmp_path / "other", **options)
    for plan in (other, one):  # of the machine that has pushed, its own chunks have gone
        pipe.pull(remote, plan)
        filled(new, plan.folder, **options)
        assert epoch(pipe, plan) > 100
        filled(new, plan.folder, **options)
        pulled = pipe.pull(remote, plan)
        assert pulled.records > 100
        assert (pulled.chunks > 0) == (plan is other)  # rows of its own are copied
        assert epoch(pipe, plan) == 0


def test_damage_at_the_remote_is_named(tmp_path: Path) -> None:
    pipe = ws.Pipeline(list(range(200))).step(large)
    pipe.push(tmp_path / "remote", filled(pipe, tmp_path / "one"))
    chunk = max((tmp_path / "remote").rglob("chunks/*"), key=lambda path: path.stat().st_size)
    content = bytearray(chunk.read_bytes())
    content[len(content) // 2] ^= 1
    chunk.write_bytes(content)
    other = plan_for(pipe, tmp_path / "other")
    with pytest.raises(Damaged, match="does not match its checksum"):
        pipe.pull(tmp_path / "remote", other)
    epoch(pipe, other)
    pipe.push(tmp_path / "remote", plan_for(pipe, tmp_path / "one"), verify=True)
    third = plan_for(pipe, tmp_path / "third")
    assert pipe.pull(tmp_path / "remote", third).records == 200
    assert epoch(pipe, third) == 0


def test_a_url_with_something_else_is_refused(tmp_path: Path) -> None:
    pipe = ws.Pipeline(range(8)).step(counted, kind="array")
    plan = filled(pipe, tmp_path / "one")
    version = next((tmp_path / "one" / "warmstore-samples").glob("1-raw-*/about.json")).parent.name
    with ws.FeatureCache(tmp_path / "features", version) as cache:
        cache.put_batch([1], np.ones((1, 2), np.float32))
        cache.push(tmp_path / "remote")
    for refused in (pipe.push, pipe.pull):
        with pytest.raises(StaleCache, match="no samples of a pipeline"):
            refused(tmp_path / "remote", plan)


@pytest.mark.parametrize(
    ("metadata", "error"),
    thinned(
        2,
        [
            ({"kind": "alike"}, Damaged),
            ({"kind": "alike", "steps": 3, "schema": {}}, Damaged),
            ({"kind": "alike", "steps": [], "schema": {"structure": ["array"], "fields": 7}}, Damaged),
            ({"kind": "others", "steps": [{"name": "other"}], "schema": None}, StaleCache),
            ({"kind": "strange"}, StaleCache),
        ],
    ),
)
def test_a_store_that_is_not_what_its_place_says(tmp_path: Path, metadata: Any, error: type[Exception]) -> None:
    pipe = ws.Pipeline(range(8)).step(counted, kind="array")
    plan = filled(pipe, tmp_path / "one")
    (version,) = (path.parent for path in (tmp_path / "one" / "warmstore-samples").glob("1-raw-*/about.json"))
    fields: Any = {"sample": ws.Array("uint64", (2,)), "value": ws.Bytes()}
    with ws.RecordStore.create(tmp_path / "forged", fields, metadata=metadata) as store:
        store.extend({"sample": np.zeros((1, 2), np.uint64), "value": [b"x"]})
    with Remote(tmp_path / "remote").below(version.name).open() as objects:
        log = PartLog(None)
        push_module.push_part(tmp_path / "forged", objects, Files(), log, log.read(objects))
    with pytest.raises(error):
        pipe.pull(tmp_path / "remote", plan)
    assert epoch(pipe, plan) == 0


def test_bytes_that_others_take_before_a_chunk_comes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = ws.Pipeline(list(range(200))).step(large)
    pipe.push(tmp_path / "remote", filled(pipe, tmp_path / "one", disk=6 * MB))
    other = plan_for(pipe, tmp_path / "other", disk=6 * MB)
    tier = tmp_path / "other" / "warmstore-samples"
    taken = take_bytes_away(monkeypatch, tier, above=200_000, leave=600_000)  # of a chunk
    with watched(tmp_path / "other") as most:
        pulled = pipe.pull(tmp_path / "remote", other)
    assert taken[0] > 4 * MB
    assert (pulled.chunks, 10 < pulled.records < 40) == (0, True)  # rows are copied
    assert most() <= 6 * MB
    assert not list(tier.rglob(".pull"))
    epoch(pipe, other)


def tracks(index: int) -> Track:
    calls[0] += 1
    return Track(np.full(20, float(index)), index, [str(index)])


def test_samples_of_another_encoder_are_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pipe = ws.Pipeline(range(16)).step(tracks).step(seen)
    ws.register_encoder(Track, encoded.encode, encoded.decode)
    calls[0] = 0
    try:
        assert pipe.push(tmp_path / "remote", filled(pipe, tmp_path / "one")).chunks
        ws.register_encoder(Track, lambda track: vars(track), encoded.decode)
        plan = plan_for(pipe, tmp_path / "other")
        assert pipe.pull(tmp_path / "remote", plan).records == 0
        calls[0] = 0  # of the examples of a new folder
        assert "the encoder of tests.pipeline.encoded.Track has changed" in caplog.text
        assert epoch(pipe, plan) >= 16
        ws.register_encoder(Track, encoded.encode, encoded.decode)
        plan = plan_for(pipe, tmp_path / "third")
        assert pipe.pull(tmp_path / "remote", plan).records == 16
        assert epoch(pipe, plan) == 0
    finally:
        REGISTRY.remove(Track)


def test_chunks_that_are_evicted_during_a_push(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = ws.Pipeline(list(range(200))).step(large)
    plan, send, evicted = filled(pipe, tmp_path / "one", disk=6 * MB), push_module._send, [0]
    pipe.close()

    def racing(local: Local, numbers: list[int], *arguments: Any, **options: Any) -> Any:
        assert is_locked(lock_path(local.path.parent)), "the version may not go"
        if evicted[0] < 2:
            evict(local.path, "g0001", [numbers[0]], Files())
            evicted[0] += 1
        return send(local, numbers, *arguments, **options)

    monkeypatch.setattr(push_module, "_send", racing)
    remote = Remote(tmp_path / "remote")
    (result,) = push_folder(tmp_path / "one", (), remote, verify=False, progress=False).values()
    assert evicted == [2]
    assert result.chunks >= 2
    with pipe.loader(plan, 8, workers=0) as loader:
        left = int((loader._source.cached.open().rows >= 0).sum())
    assert pipe.pull(tmp_path / "remote", plan_for(pipe, tmp_path / "other")).records == left
