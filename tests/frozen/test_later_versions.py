"""What a later version of warmstore has written is refused with what to do, or is a miss. It is never damaged.

The later version is this one with higher numbers of formats. Record stores, bundles and artifact stores have such tests
beside their other ones.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.pipeline.functions import make

import warmstore as ws
from warmstore.compiling.remote import signed_manifests
from warmstore.errors import BadState, Damaged, NewerFormat
from warmstore.loading.steps import cursor
from warmstore.pipeline.profile import profile
from warmstore.pipeline.profile.profile import Profile
from warmstore.remote import segment_bundles
from warmstore.remote.segment_names import Checksums
from warmstore.replicate import parts, remote_snapshot
from warmstore.replicate.remote_copy import Remote
from warmstore.replicate.upkeep import gc, repair, verify
from warmstore.storage import history

pytest.importorskip("obstore", reason="obstore is not installed: pip install 'warmstore[dev]'")


@contextmanager
def later(module: Any, name: str = "FORMAT") -> Iterator[int]:
    """Be the next version of warmstore. Gives the number of its format."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, name, getattr(module, name) + 1)
        yield getattr(module, name)


@pytest.fixture(autouse=True)
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "mirror"))


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_record_store_at_a_remote(tmp_path: Path) -> None:
    with ws.RecordStore.create(tmp_path / "s", {"x": ws.Array("int64")}) as store:
        store.append({"x": 1})
        store.push(tmp_path / "remote", progress=False)
    (head,) = tmp_path.glob("remote/heads/*/*.json")
    content = json.loads(head.read_text())
    del content["checksum"]
    content["format"] = number = remote_snapshot.FORMAT + 1
    head.write_text(json.dumps({**content, "checksum": remote_snapshot.checksum_of(content)}))
    before = contents(tmp_path / "remote")
    for look in (
        lambda: ws.RecordStore.clone(tmp_path / "remote", tmp_path / "copy", progress=False),
        lambda: ws.RecordStore.open((tmp_path / "remote").as_uri(), cache_dir=tmp_path / "read"),
    ):
        with pytest.raises(NewerFormat, match=f"has format {number}.*Upgrade warmstore"):
            look()
    assert contents(tmp_path / "remote") == before


def push(folder: Path, remote: Path, ids: range) -> None:
    with ws.FeatureCache(folder, "net") as cache:
        cache.put_batch(list(ids), np.ones((len(ids), 4), np.float32))
        cache.push(remote, progress=False)


def pulled(folder: Path, remote: Path) -> set[Any]:
    with ws.FeatureCache(folder, "net") as cache:
        cache.pull(remote, progress=False)
        return set(cache)


@pytest.mark.parametrize("kind", [parts, segment_bundles])
def test_parts_of_a_cache_at_a_remote(
    kind: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are left out and named, nothing removes them, and the later version still has them."""
    remote = tmp_path / "remote"
    with later(kind) as number:
        for host in range(12):  # more than a fold leaves loose
            push(tmp_path / f"new{host}", remote, range(host, host + 1))
        assert pulled(tmp_path / "newest", remote) == {*range(12)}
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    push(tmp_path / "old", remote, range(50, 52))
    found = pulled(tmp_path / "here", remote)
    assert {50, 51} <= found < {*range(12), 50, 51}
    assert f"has format {number}" in caplog.text
    assert "Upgrade" in caplog.text
    report = verify(Remote(remote / "net"))
    assert not report.ok
    assert any("Upgrade" in problem for problem in report.problems)
    repair(Remote(remote / "net"), deep=True)
    with pytest.raises(Damaged, match="Upgrade"):
        gc(Remote(remote / "net"), keep=10**9)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "third"))
    with later(kind):
        assert pulled(tmp_path / "again", remote) == {*range(12), 50, 51}


def test_manifests_of_compiled_artifacts(tmp_path: Path) -> None:
    with later(signed_manifests) as number:
        payload = signed_manifests.payload_of(signed_manifests.SignedManifest("n", (), {}, ""))
    segment = segment_bundles.Segment(Checksums().name("s", payload), (), payload, payload)
    with pytest.raises(NewerFormat, match=f"has format {number}; .*Upgrade warmstore"):
        signed_manifests.manifest_of(segment, "n")


def test_a_profile_is_a_miss(tmp_path: Path) -> None:
    pipe = ws.Pipeline(range(8)).step(make, kind="array")
    with later(profile, "_FORMAT"):
        pipe.profile(samples=8, seconds=0.1, max_workers=0, folder=tmp_path)
    (path,) = tmp_path.glob("profile-*.json")
    assert Profile.load(path) is None
    assert pipe.profile(samples=8, seconds=0.1, max_workers=0, folder=tmp_path).samples == 8
    assert Profile.load(path) is not None


def test_the_state_of_a_loader() -> None:
    loader = ws.Loader(np.arange(10), 2)
    next(iter(loader))
    with later(cursor):
        state = loader.state_dict()
    with pytest.raises(BadState, match="Upgrade it"):
        loader.load_state_dict(state)
    assert loader.state_dict() == {**state, "format": cursor.FORMAT}


def test_a_history(tmp_path: Path) -> None:
    """Records of a later version are skipped, and those of this one are read."""
    kept = history.History(tmp_path, "features")
    with later(history, "VERSION"):
        kept.append("epoch", hits=1)
    kept.append("epoch", hits=2)
    assert len((tmp_path / history.NAME).read_text().splitlines()) == 2
    assert [record["hits"] for record in history.read_history(tmp_path)] == [2]
    assert json.loads((tmp_path / history.NAME).read_text().splitlines()[0])["hits"] == 1
