"""What differs between two caches is named, place by place."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from tests.inventory.making import disk_plan, doubled, features, pipeline, store

import warmstore as ws
from warmstore.cli.across_view import comparison_text
from warmstore.errors import NotAStore, SchemaMismatch
from warmstore.inventory.comparison import compare
from warmstore.pipeline.tiers.tier_store import KINDS


def test_versions_of_a_feature_cache(tmp_path: Path) -> None:
    first = features(tmp_path, "net", 1.0)
    second = features(tmp_path, "net", 2.0, versions="new")
    assert second.name.startswith("net@")
    found = compare(first, second)
    assert found.kind == "features"
    assert [text for text in found.differences if "the values of the tensor" in text]
    assert all("factor" in text for text in found.differences)
    assert compare(first, first).differences == ()
    assert compare(first, features(tmp_path, "same", 1.0)).differences == ()


def test_samples_of_pipelines(tmp_path: Path) -> None:
    pipeline(tmp_path / "two", 2)
    pipeline(tmp_path / "three", 3)
    found = compare(tmp_path / "two", tmp_path / "three")
    assert found.kind == "pipeline"
    (text,) = found.differences
    assert text.startswith("step 'doubled': ")
    assert "was 2, is 3" in text
    assert compare(tmp_path / "two", tmp_path / "two").differences == ()


def test_samples_of_other_data(tmp_path: Path) -> None:
    for name, data in (("first", range(20)), ("second", range(15, 50)), ("floats", [float(at) for at in range(20)])):
        pipe = ws.Pipeline(data).step(doubled, by=2)
        pipe.fill(disk_plan(pipe, tmp_path / name), workers=0, progress=False)
        pipe.close()
    found = compare(tmp_path / "first", tmp_path / "second")
    assert found.differences == ("15 of 20 samples are in A alone", "30 of 35 samples are in B alone")
    dtype, *samples = compare(tmp_path / "first", tmp_path / "floats").differences
    assert dtype == "the samples have another structure"
    assert samples == ["20 of 20 samples are in A alone", "20 of 20 samples are in B alone"]
    assert compare(tmp_path / "first", tmp_path / "first").not_compared == ""


def test_samples_are_not_compared_where_none_are_held(tmp_path: Path) -> None:
    pipeline(tmp_path / "full")
    shutil.copytree(tmp_path / "full", tmp_path / "empty")
    for kind in KINDS:
        for held in (tmp_path / "empty").rglob(kind):
            shutil.rmtree(held)
    found = compare(tmp_path / "full", tmp_path / "empty")
    assert (found.differences, found.not_compared) == ((), "the samples: B holds none")
    assert "were made from the same steps.\nNot compared: the samples: B holds none." in comparison_text(found)


def test_what_cannot_be_compared(tmp_path: Path) -> None:
    features(tmp_path / "caches", "net", 1.0)
    features(tmp_path / "caches", "net", 2.0, versions="new")
    with ws.FeatureCache(tmp_path / "put", "put") as cache:
        cache.put_batch([1], np.ones((1, 3)))
    pipeline(tmp_path / "plans")
    with pytest.raises(NotAStore, match=r"has 2 versions: net, net@"):
        compare(tmp_path / "caches", tmp_path / "put")
    with pytest.raises(SchemaMismatch, match="put_batch alone"):
        compare(tmp_path / "caches" / "net", tmp_path / "put")
    with pytest.raises(SchemaMismatch, match="different kinds"):
        compare(tmp_path / "caches" / "net", tmp_path / "plans")
    with pytest.raises(NotAStore, match="no fingerprint"):
        compare(tmp_path / "put", store(tmp_path / "store"))
