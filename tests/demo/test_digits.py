"""The demo's job by itself: what is cached, or partly so, must come out as if nothing were."""

from pathlib import Path

import pytest
import torch

import warmstore as ws
from warmstore.demo.digits import SIZE, ImageEncoder, decode, images_of, plan_for, resize, write_images


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("digits") / "images"
    write_images(folder, 12)
    return sorted(folder.glob("*.png"))


def test_files_are_named_by_number_and_label(files: list[Path]) -> None:
    assert [file.name for file in files[:3]] == ["digit_0000_is_0.png", "digit_0001_is_1.png", "digit_0002_is_2.png"]
    assert len(files) == 12


def test_kept_images_are_the_computed_ones(files: list[Path], tmp_path: Path) -> None:
    pipe = images_of(files)
    plan = plan_for(pipe, tmp_path)
    assert (sum(map(sum, plan.counts)), {place.tier for place in plan.placements}) == (12, {"disk"})
    assert {place.step for place in plan.placements} == {2}
    for computed in (12, 0):
        done = pipe.fill(plan, 4, progress=False)
        assert (done.computed, done.found) == (computed, 12 - computed)
    with pipe.loader(plan, 5, seed=1, to="torch") as kept, pipe.loader(None, 5, workers=0, seed=1, to="torch") as plain:
        for _ in range(2):
            for one, other in zip(kept, plain, strict=True):
                assert one.keys() == {"pixels", "number", "label"}
                assert all(torch.equal(one[name], other[name]) for name in one)
                assert (one["pixels"].dtype, one["pixels"].shape[1:]) == (torch.uint8, (96, 96))
                assert [files[at].stem for at in one["number"]] == [
                    f"digit_{at:04d}_is_{label}" for at, label in zip(one["number"], one["label"], strict=True)
                ]


def test_partly_cached_features_are_the_computed_ones(files: list[Path], tmp_path: Path) -> None:
    pixels = torch.stack([torch.from_numpy(resize(decode(file), SIZE)["pixels"]) for file in files])
    numbers = torch.arange(len(files))
    encoder = ImageEncoder().eval()
    expected = encoder(pixels)
    assert expected.shape == (12, encoder.features)
    with ws.FeatureCache(tmp_path, "features") as cache:
        cached = ws.CachedModule(encoder, cache)
        assert torch.equal(cached(pixels[3:8], cache_ids=numbers[3:8]), expected[3:8])
        assert torch.equal(cached(pixels, cache_ids=numbers), expected)
