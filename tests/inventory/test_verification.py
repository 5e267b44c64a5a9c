"""Damage in folders of every kind is found, and is the only thing that is found."""

from pathlib import Path

import pytest
from tests.inventory.making import compiled, features, pipeline, states, store

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
