"""The demo's job by itself: a batch that is only partly cached must come out as if nothing were."""

from pathlib import Path

import pytest
import torch

import warmstore as ws
from warmstore.cli.digits import Encoder, decode, read_pixels, write_images


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("digits") / "images"
    write_images(folder, 12)
    return sorted(folder.glob("*.png"))


def test_files_are_named_by_number_and_label(files: list[Path]) -> None:
    assert [file.name for file in files[:3]] == ["digit_0000_is_0.png", "digit_0001_is_1.png", "digit_0002_is_2.png"]
    assert len(files) == 12


def test_partly_cached_pixels_are_the_decoded_ones(files: list[Path], tmp_path: Path) -> None:
    with ws.FeatureCache(tmp_path, "pixels") as cache:
        read_pixels(files[::3], cache)
        shuffled = files[5:] + files[:5]
        assert torch.equal(read_pixels(shuffled, cache), decode(shuffled))
        assert torch.equal(read_pixels(files, cache), decode(files))
        assert (cache.stats().hits, cache.stats().misses) == (4 + 12, 4 + 8)


def test_partly_cached_features_are_the_computed_ones(files: list[Path], tmp_path: Path) -> None:
    pixels, names = decode(files), [file.name for file in files]
    encoder = Encoder().eval()
    expected = encoder(pixels)
    assert expected.shape == (12, encoder.features)
    with ws.FeatureCache(tmp_path, "features") as cache:
        cached = ws.CachedModule(encoder, cache)
        assert torch.equal(cached(pixels[3:8], cache_ids=names[3:8]), expected[3:8])
        assert torch.equal(cached(pixels, cache_ids=names), expected)
