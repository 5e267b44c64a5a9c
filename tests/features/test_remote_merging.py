"""Parts of many tasks at a remote, merged to one."""

from pathlib import Path

import numpy as np
import pytest

import warmstore as ws
from warmstore.features import remote_merging
from warmstore.features.remote_merging import MergedParts, merge_parts
from warmstore.replicate.remote_copy import Remote

pytest.importorskip("obstore", reason="obstore is not installed: pip install 'warmstore[dev]'")


def put(url: str, cache_dir: Path, ids: range, value: float) -> None:
    with ws.FeatureCache(url, "id", cache_dir=cache_dir) as cache:
        cache.put_batch(ids, np.full((len(ids), 4), value, np.float32))


def values(url: str, cache_dir: Path, ids: range) -> list[float]:
    with ws.FeatureCache(url, "id", cache_dir=cache_dir) as cache:
        found, missing = cache.get_batch(ids)
        assert not len(missing)
        return np.asarray(found)[:, 0].tolist()


@pytest.fixture
def url(tmp_path: Path) -> str:
    url = f"file://{tmp_path}/team"
    for task in range(5):
        put(url, tmp_path / f"task{task}", range(10 * task, 10 * task + 15), task)
    return url


def parts(url: str) -> list[int]:
    """The number of chunks of each part."""
    remote = Remote(url).below("id")
    with remote.open() as objects:
        return [len(part.chunks) for part in remote.part_log().read(objects).parts if part.chunks]


def test_parts_become_one_with_a_row_for_each_id(url: str, tmp_path: Path) -> None:
    before = values(url, tmp_path / "before", range(55))
    assert parts(url) == [1] * 5
    assert merge_parts(Remote(url).below("id")) == MergedParts(5, 55)
    assert parts(url) == [1]
    assert [round(value) for value in values(url, tmp_path / "new", range(55))] == [round(value) for value in before]
    assert values(url, tmp_path / "before", range(55)) == before  # a host that has the parts
    assert merge_parts(Remote(url).below("id")) == MergedParts(1, 55)
    put(url, tmp_path / "task9", range(55, 60), 9)
    put(url, tmp_path / "task1", range(60, 65), 1)  # a host whose part was retired
    assert values(url, tmp_path / "new", range(65))[55:] == [9.0] * 5 + [1.0] * 5
    assert merge_parts(Remote(url).below("id"), work_dir=tmp_path).samples == 65
    assert parts(url) == [1]


def test_a_merge_that_fails_changes_nothing(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise ws.RemoteUnavailable("no")

    monkeypatch.setattr(remote_merging, "push_folder", refuse)
    with pytest.raises(ws.RemoteUnavailable):
        merge_parts(Remote(url).below("id"))
    assert parts(url) == [1] * 5
    with pytest.raises(ws.NotAStore):
        merge_parts(Remote(f"file://{tmp_path}/nothing"))


@pytest.mark.parametrize("kind", ["chunks", "sidecars"])
def test_a_merge_without_a_chunk_changes_nothing(kind: str, url: str, tmp_path: Path) -> None:
    away = min((tmp_path / "team").rglob(f"{kind}/*"))
    held = away.read_bytes()
    away.unlink()
    with pytest.raises(ws.Damaged, match="nothing is merged"):
        merge_parts(Remote(url).below("id"))
    assert parts(url) == [1] * 5
    away.write_bytes(held)
    values(url, tmp_path / "new", range(55))
    assert merge_parts(Remote(url).below("id")) == MergedParts(5, 55)
