"""`warmstore store push`, `pull` and `sync`, as a user sees them."""

from pathlib import Path

import pytest
import torch
from tests.cli.test_features import run
from tests.replicate.test_push_pull import check, make

import warmstore as ws

pytest.importorskip("obstore", reason="obstore is not installed: pip install 'warmstore[dev]'")


def test_a_record_store(tmp_path: Path) -> None:
    remote = tmp_path / "remote"
    make(tmp_path / "a", 100).close()
    status, said, _ = run("store", "push", tmp_path / "a", remote, "--no-progress")
    assert status == 0
    assert "chunks sent" in said
    status, said, _ = run("store", "push", tmp_path / "a", remote, "--verify")
    assert " 0 chunks sent" in said
    status, said, _ = run("store", "pull", remote, tmp_path / "b")
    assert "100 records" in said
    status, _, error = run("store", "inspect", remote)
    assert status == 1
    assert f"open {remote.as_uri()}, or clone it" in error
    status, _, error = run("store", "inspect", "s3://bucket/photos")
    assert status == 2
    assert "pull the store into a folder first" in error
    check(tmp_path / "b", tmp_path / "a")
    with ws.RecordStore.open(tmp_path / "b", "a") as copy:
        copy.delete([3])
    assert run("store", "sync", tmp_path / "b", remote)[0] == 0
    assert run("store", "sync", tmp_path / "a", remote)[0] == 0
    check(tmp_path / "b", tmp_path / "a")


def test_a_cache(tmp_path: Path) -> None:
    remote = tmp_path / "remote"
    for number, host in enumerate("ab"):
        with ws.FeatureCache(tmp_path / host, "net") as cache:
            cache.put_batch([number], torch.full((1, 3), float(number)))
        assert run("store", "sync", tmp_path / host / "net", remote)[0] == 0
    _, said, _ = run("store", "pull", remote, tmp_path / "c" / "net")
    assert "2 chunks fetched" in said
    with ws.FeatureCache(tmp_path / "c", "net") as cache:
        values, missing = cache.get_batch([0, 1])
        assert not len(missing)
        assert values[:, 0].tolist() == [0.0, 1.0]


def test_what_cannot_be_is_one_line(tmp_path: Path) -> None:
    status, _, error = run("store", "push", tmp_path, tmp_path / "remote")
    assert status == 1
    assert "is not a warmstore store" in error
    status, _, error = run("store", "pull", tmp_path / "nothing", tmp_path / "a")
    assert status == 1
    assert "holds no store" in error
    status, _, error = run("store", "push", tmp_path, "s3://bucket", "--option", "region")
    assert status == 2
    assert "NAME=VALUE" in error
