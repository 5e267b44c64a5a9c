"""Damage in folders of every kind is found, and is the only thing that is found."""

from pathlib import Path

import pytest
from tests.inventory.making import compiled, features, pipeline, states, store

import warmstore as ws
from warmstore.inventory.verification import verify


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_whole_folders_are_whole(tmp_path: Path) -> None:
    store(tmp_path / "store")
    features(tmp_path / "caches", "net")
    pipeline(tmp_path / "plans")
    compiled(tmp_path / "compiled")
    results = [verify(state, progress=False) for state in states(tmp_path)]
    assert len(results) == 4
    assert [(result.ok, result.repair) for result in results] == [(True, "")] * 4


@pytest.mark.parametrize(
    ("make", "pattern"),
    [
        (lambda path: store(path / "store"), "**/*.arrow"),
        (lambda path: store(path / "store"), "**/store.json"),
        (lambda path: features(path, "net"), "**/*.arrow"),
        (lambda path: pipeline(path), "**/*.arrow"),
        (lambda path: compiled(path), "blobs/*/*"),
    ],
    ids=["store", "description", "features", "pipeline", "compiled"],
)
def test_damage_is_found(make, pattern: str, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    make(tmp_path)
    damage(next(tmp_path.glob(pattern)))
    (result,) = [verify(state, progress=False) for state in states(tmp_path)]
    assert not result.ok
    assert any("damaged" in line or "checksum" in line or "does not match" in line for line in result.lines)


def test_a_version_whose_description_is_damaged_is_not_well(tmp_path: Path) -> None:
    pipeline(tmp_path)
    damage(next(tmp_path.glob("**/about.json")))
    (result,) = [verify(state, progress=False) for state in states(tmp_path)]
    assert not result.ok
    assert "about.json cannot be read" in result.lines[0]
    assert result.repair.startswith("warmstore pipelines clear ")


def test_a_version_whose_store_lost_its_description_is_not_well(tmp_path: Path) -> None:
    pipeline(tmp_path)
    next(tmp_path.glob("**/store.json")).unlink()
    (result,) = [verify(state, progress=False) for state in states(tmp_path)]
    assert not result.ok


@pytest.mark.parametrize("lost", [False, True], ids=["damaged", "without hashes"])
def test_the_blocks_of_a_copy_are_compared(lost: bool, tmp_path: Path) -> None:
    pytest.importorskip("obstore", reason="obstore is not installed: pip install 'warmstore[dev]'")
    with ws.RecordStore.open(store(tmp_path / "store")) as opened:
        opened.push(tmp_path / "remote", progress=False)
    with ws.RecordStore.open((tmp_path / "remote").as_uri(), cache_dir=tmp_path / "copies") as there:
        assert there["x"][:].tolist() == list(range(10))
    (state,) = states(tmp_path / "copies")
    assert verify(state).ok
    if lost:
        next(tmp_path.glob("copies/**/*.hashes")).unlink()
    else:
        chunk = next(tmp_path.glob("copies/**/*.arrow"))
        chunk.write_bytes(bytes(chunk.stat().st_size))
    result = verify(state)
    assert not result.ok
    assert ("have no hashes" if lost else "do not match their hashes") in result.lines[0]
    assert result.repair == state.free
