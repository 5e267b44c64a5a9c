"""Samples of images, text, objects, Arrow data and types of the program equal uncached ones in every epoch."""

import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image, ImageDraw
from tests.pipeline import encoded
from tests.pipeline.encoded import KINDS, Clip, Track, make, make_pair, same, seen, written
from tests.pipeline.making import expected, plan_of
from tests.slow import either, thinned, unforked

import warmstore as ws
from warmstore.pipeline.encoders.registry import REGISTRY
from warmstore.pipeline.metering.epoch_meter import EpochMeter

pytestmark = pytest.mark.forks
CODECS = ("raw", "zstd")


@pytest.fixture(autouse=True)
def track() -> Iterator[None]:
    """The encoder of a program, registered for one test."""
    ws.register_encoder(Track, encoded.encode, encoded.decode)
    yield
    REGISTRY.remove(Track)


def kept(loader: ws.Loader) -> int:
    return int((loader._source.cached.open().rows >= 0).sum())


def check(loader: ws.Loader, batches: Callable[[int], Iterable[Any]], epochs: range) -> None:
    """Assert that a loader gives these batches, epoch by epoch."""
    for epoch in epochs:
        got, wanted = list(loader), list(batches(epoch))
        assert len(got) == len(wanted)
        for at, pair in enumerate(zip(got, wanted, strict=True)):
            assert same(*pair), (epoch, at, [seen(batch) for batch in pair])


@pytest.mark.parametrize(("codec", "kind"), thinned(12, [(codec, kind) for codec in CODECS for kind in KINDS]))
def test_kept_samples_equal_uncached_ones(kind: str, codec: str, tmp_path: Path) -> None:
    pipe = ws.Pipeline(range(12)).step(make, kind=kind)
    plan = plan_of(pipe, [(1, "memory", codec), (1, "disk", codec)], [6, 6], folder=tmp_path / "cache")
    with pipe.loader(None, 4, workers=0) as loader:
        uncached = [list(loader) for _ in range(3)]
    with pipe.loader(plan, 4, workers=0) as loader:
        check(loader, uncached.__getitem__, range(3))
        assert kept(loader) == 12
        assert loader._source.notes() == []
    with pipe.loader(plan, 4, workers=0) as loader:  # the next run
        assert kept(loader) == 6
        check(loader, uncached.__getitem__, range(1))


@pytest.mark.parametrize("kind", thinned(3, KINDS))
def test_a_later_step_sees_what_it_sees_uncached(kind: str, tmp_path: Path) -> None:
    """It writes to every part, so that parts that are one, or share memory, show it."""
    pipe = ws.Pipeline(range(8)).step(make, kind=kind).step(written)
    plan = plan_of(pipe, [(1, "memory", "raw"), (1, "disk", "raw")], [4, 4], folder=tmp_path / "cache")
    with pipe.loader(plan, 4, workers=0) as loader:
        check(loader, lambda epoch: expected(pipe, 4, 0, epoch), range(3))
        assert kept(loader) == 8
        assert loader._source.notes() == []


@pytest.mark.remotes
@pytest.mark.parametrize("codec", thinned(2, CODECS))
def test_a_team_shares_them(codec: str, tmp_path: Path) -> None:
    """As whole chunks, and row by row where the other machine's plan has another codec."""
    pytest.importorskip("obstore", reason="obstore is not installed: pip install 'warmstore[dev]'")
    for kind in KINDS[CODECS.index(codec) :: either(4, 1)]:
        pipe = ws.Pipeline(range(8)).step(make, kind=kind).step(written)
        one, other = (plan_of(pipe, [(1, "disk", each)], [8], folder=tmp_path / kind / each) for each in ("raw", codec))
        other = replace(other, folder=tmp_path / kind / "other")
        pipe.fill(one, workers=0, progress=False)
        pipe.push(tmp_path / "remote" / kind, one)
        assert pipe.pull(tmp_path / "remote" / kind, other).records == 8, kind
        assert pipe.fill(other, workers=0, progress=False).computed == 0
        with pipe.loader(other, 4, workers=0) as loader:
            check(loader, partial(expected, pipe, 4, 0), range(2))


@pytest.mark.parametrize("start_method", thinned(2, ["fork", unforked()]))
def test_workers_have_the_encoders(start_method: str, tmp_path: Path) -> None:
    pairs = [(index, kind) for index in range(3) for kind in KINDS]
    pipe = ws.Pipeline(pairs).step(make_pair).step(written)
    plan = plan_of(pipe, [(1, "memory", "raw"), (1, "disk", "zstd")], [24, 24], folder=tmp_path / "cache", workers=2)
    with pipe.loader(plan, 4, workers=2, start_method=start_method) as loader:
        check(loader, lambda epoch: expected(pipe, 4, 0, epoch), range(3))
        assert kept(loader) == 48
        assert loader._source.notes() == []


def test_an_encoder_that_cannot_be_sent_to_workers() -> None:
    ws.register_encoder(Track, lambda track: vars(track), encoded.decode)
    pipe = ws.Pipeline(range(4)).step(make, kind="track")
    with pytest.raises(ws.NotPicklable, match=r"the encoder of tests.pipeline.encoded.Track cannot be sent"):
        pipe.loader(None, workers=1, start_method="spawn")


def test_a_subclass_is_not_kept_as_its_base_class(tmp_path: Path) -> None:
    def clip(index: int) -> Clip:
        return Clip(np.zeros(2), index)

    pipe = ws.Pipeline(range(4)).step(clip).step(seen)
    plan = plan_of(pipe, [(1, "disk", "raw")], [4], folder=tmp_path / "cache")
    with (
        pytest.warns(RuntimeWarning, match=r"'clip' cannot be stored.*Clip.*ws.register_encoder\(Clip"),
        pipe.loader(plan, 4, workers=0) as loader,
    ):
        check(loader, lambda epoch: expected(pipe, 4, 0, epoch), range(2))


def test_an_image_that_is_tied_to_its_file_is_not_kept(tmp_path: Path) -> None:
    path = tmp_path / "image.png"
    Image.new("RGB", (3, 2)).save(path)
    for function, says in ((Image.open, "image.copy()"), (opened, "")):
        pipe = ws.Pipeline([path]).step(function).step(seen)
        plan = pipe.plan(profile=pipe.profile(samples=1, seconds=0.1, max_workers=0), memory="1MB")
        stage = plan.profile.stages[1]
        assert says in stage.trouble
        assert bool(stage.trouble) == bool(says)


def opened(path: Path) -> Image.Image:
    with Image.open(path) as image:
        return image.convert("L")


MEMO: dict[int, Any] = {}


def test_a_step_that_draws_on_a_memo(tmp_path: Path) -> None:
    """Uncached, the memo's image has one more point in each epoch; kept, too."""

    def memo(index: int) -> Any:
        return MEMO.setdefault(index, Image.new("L", (9, 9)))

    def draw(image: Any) -> Any:
        data = image.tobytes()
        ImageDraw.Draw(image).point((sum(map(bool, data)), 0), 255)
        return np.frombuffer(data, np.uint8)

    counts = []
    pipe = ws.Pipeline(range(4), version="1").step(memo, version="1").step(draw)
    plan = plan_of(pipe, [(1, "memory", "raw")], [4])
    for chosen in (None, plan):
        MEMO.clear()
        with warnings.catch_warnings(record=True) as notes, pipe.loader(chosen, 4, workers=0) as loader:
            warnings.simplefilter("always")
            counts.append([sorted(int((row > 0).sum()) for batch in loader for row in batch) for _ in range(4)])
    assert counts == [[[epoch] * 4 for epoch in range(4)]] * 2
    assert "'memo' shares memory with the source, an argument, a global or a memo, and a step writes" in str(
        notes[0].message
    )


def test_a_step_that_only_reads_a_memo_is_kept(tmp_path: Path) -> None:
    memo = [Image.new("L", (2, 2), index) for index in range(4)]
    tracks = [Track(np.full(3, index), index) for index in range(4)]

    def from_memo(index: int) -> Any:
        return {"image": memo[index], "track": tracks[index]}

    pipe = ws.Pipeline(range(4)).step(from_memo, ignore=("memo", "tracks"), version="1").step(seen)
    plan = plan_of(pipe, [(1, "disk", "raw")], [4], folder=tmp_path / "cache")
    with pipe.loader(plan, 4, workers=0) as loader:
        check(loader, lambda epoch: expected(pipe, 4, 0, epoch), range(3))
        assert kept(loader) == 4
        assert loader._source.notes() == []


@pytest.mark.parametrize("encode", ["drops", "copies", "fails"])
def test_a_wrong_encoder_is_found_at_once(encode: str, tmp_path: Path) -> None:
    ways = {
        "drops": lambda track: {**encoded.encode(track), "tags": []},
        "copies": lambda track: {**encoded.encode(track), "tags": list(track.tags)},
        "fails": lambda track: track.no_such_name,
    }
    says = {"drops": "differs from the value: `state/tags`", "copies": "shares a list", "fails": "no_such_name"}
    ws.register_encoder(Track, ways[encode], encoded.decode)
    pipe = ws.Pipeline(range(4)).step(make, kind="tracks" if encode == "copies" else "track").step(written)
    plan = plan_of(pipe, [(1, "disk", "raw")], [4], folder=tmp_path / "cache")
    with pytest.warns(RuntimeWarning, match=says[encode]), pipe.loader(plan, 4, workers=0) as loader:
        check(loader, lambda epoch: expected(pipe, 4, 0, epoch), range(2))


def test_an_encoder_that_is_wrong_for_a_rare_value(tmp_path: Path) -> None:
    """The first samples are right, and so is each sample that is kept."""
    ws.register_encoder(
        Track, lambda track: [track.sound, min(track.rate, 16_009), track.tags], lambda parts: Track(*parts)
    )
    pipe = ws.Pipeline(range(12)).step(make, kind="track")
    plan = plan_of(pipe, [(1, "disk", "raw")], [12], folder=tmp_path / "cache")
    with (
        pytest.warns(
            RuntimeWarning, match=r"sample (10|11) cannot be kept.*`state/rate` has other values|cannot be stored"
        ),
        pipe.loader(plan, 4, workers=0) as loader,
    ):
        check(loader, lambda epoch: expected(pipe, 4, 0, epoch), range(2))


@pytest.mark.parametrize("over", [Image.fromarray, lambda pixels: pa.array(pixels.reshape(-1))])
def test_memory_that_arrow_or_an_image_shares_with_an_array(over: Callable[[Any], Any], tmp_path: Path) -> None:
    def shared(index: int) -> Any:
        pixels = np.full((4, 8), index, np.uint8)
        return {"pixels": pixels, "other": over(pixels)}

    def add(sample: Any) -> Any:
        sample["pixels"] += 1
        return repr(seen(sample))

    pipe = ws.Pipeline(range(4)).step(shared).step(add)
    plan = plan_of(pipe, [(1, "disk", "raw")], [4], folder=tmp_path / "cache")
    with (
        pytest.warns(RuntimeWarning, match="pixels and other share memory; return copies"),
        pipe.loader(plan, 4, workers=0) as loader,
    ):
        check(loader, lambda epoch: expected(pipe, 4, 0, epoch), range(3))


def test_a_batch_is_read_at_once_only_where_every_leaf_is_stacked(tmp_path: Path) -> None:
    for kind in KINDS[:: either(2, 1)]:
        pipe = ws.Pipeline(range(4)).step(make, kind=kind)
        plan = plan_of(pipe, [(1, "disk", "raw")], [4], folder=tmp_path / "cache")
        with pipe.loader(plan, 4, workers=0) as loader:
            list(loader)
            stores = loader._source.cached.open()
            stores.refresh()
            assert (stores.rows >= 0).all()
            assert stores.read_stacked(np.arange(4), 1, EpochMeter()) is None


def test_labels_beside_parts_that_are_not_stacked(tmp_path: Path) -> None:
    def labelled(index: int) -> Any:
        return {"value": make(index, "image"), "label": index, "words": make(index, "objects"), "x": np.arange(3)}

    pipe = ws.Pipeline(range(0, 16, 2)).step(labelled)
    plan = plan_of(pipe, [(1, "disk", "raw")], [8], folder=tmp_path / "cache")
    with pipe.loader(None, 4, workers=0) as loader:
        uncached = [list(loader) for _ in range(3)]
    with pipe.loader(plan, 4, workers=0) as loader:
        check(loader, uncached.__getitem__, range(3))
        assert kept(loader) == 8


def test_a_profile_is_measured_again_with_another_encoder(tmp_path: Path) -> None:
    pipe = ws.Pipeline(range(4)).step(make, kind="track")
    options: dict[str, Any] = {"folder": tmp_path, "samples": 4, "seconds": 0.1, "max_workers": 0}
    REGISTRY.remove(Track)
    assert "register an encoder: ws.register_encoder(Track, " in pipe.profile(**options).stages[1].trouble
    assert "is a tests.pipeline.encoded.Track" in str(pipe.plan(profile=pipe.profile(**options), memory="1MB"))
    ws.register_encoder(Track, encoded.encode, encoded.decode)
    assert pipe.profile(**options).stages[1].trouble == ""
    assert len(list(tmp_path.glob("profile-*.json"))) == 2


POINTS = """
    import numpy as np

    OFFSET = 1
    SCALES = np.ones(3_000_000)
    SEEN = {}

    class Point:
        def __init__(self, x):
            self.x = x

    def encode(point):
        SEEN[point.x] = point.x
        return (point.x + OFFSET) * float(SCALES[0])

    def decode(x):
        return Point(x / float(SCALES[0]) - OFFSET)

    def make(index):
        return Point(float(index))

    def look(point):
        return point.x
"""


@pytest.fixture
def points(program: Any) -> Iterator[Any]:
    """A module with steps and an encoder, which reads globals and writes to a memo."""
    module = program(POINTS)
    ws.register_encoder(module.Point, module.encode, module.decode)
    yield module
    REGISTRY.remove(module.Point)


def test_an_encoder_with_a_memo(points: Any) -> None:
    pipe = ws.Pipeline(range(8)).step(points.make).step(points.look)
    with pipe.loader(plan_of(pipe, [(1, "memory", "raw")], [8]), 4, workers=0) as loader:
        check(loader, lambda epoch: expected(pipe, 4, 0, epoch), range(4))
        assert kept(loader) == 8
        assert loader._source.notes() == []


@pytest.mark.parametrize(
    ("change", "batches"), thinned(3, [("OFFSET = 5", 1), ("OFFSET = 5", 2), ("SCALES[0] = 2", 2)])
)
def test_globals_of_an_encoder_that_change(change: str, batches: int, points: Any) -> None:
    """What was encoded with the old value is not decoded with the new one, neither in this epoch nor in the next."""
    pipe = ws.Pipeline(range(8)).step(points.make).step(points.look)
    wanted = [list(expected(pipe, 4, 0, epoch)) for epoch in range(4)]
    with pipe.loader(plan_of(pipe, [(1, "memory", "raw")], [8]), 4, workers=0) as loader:
        check(loader, wanted.__getitem__, range(2))
        assert kept(loader) == 8
        third = iter(loader)
        got = [next(third) for _ in range(batches)]
        exec(change, vars(points))
        with pytest.warns(RuntimeWarning, match=r"cannot be restored.*: the encoder of .*Point has changed"):
            got += [*third, *loader]
        assert same(got, wanted[2] + wanted[3])
        check(loader, lambda epoch: expected(pipe, 4, 0, epoch), range(4, 6))
        assert kept(loader) == 8


def slow_encode(track: Track) -> Any:
    until = time.process_time() + 0.002
    while time.process_time() < until:
        pass
    return encoded.encode(track)


def test_encoding_counts_as_writing() -> None:
    ws.register_encoder(Track, slow_encode, encoded.decode)
    profile = ws.Pipeline(range(4)).step(make, kind="track").profile(samples=4, seconds=0.1, max_workers=0)
    assert all(write > 0.0019 for write in profile.stages[1].stored["raw"].write)
