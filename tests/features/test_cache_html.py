"""A feature cache in a notebook: its figures, how full it is, and its versions."""

from pathlib import Path

import torch
from tests.display.reading import cells_of, read_html
from torch import nn

import warmstore as ws


def after(cells: list[str], name: str) -> str:
    return cells[cells.index(name) + 1]


def test_shows_figures_and_versions(tmp_path: Path) -> None:
    with ws.FeatureCache(tmp_path, "net", versions="new", max_size="8MB") as cache:
        assert "Nothing is on the disk yet." in cells_of(cache._repr_html_())
        for scale in (1, 2):
            net = nn.Linear(4, 2).requires_grad_(False).eval()
            nn.init.constant_(net.weight, scale)
            module = ws.CachedModule(net, cache)
            for _ in range(2):
                module(torch.ones(3, 4), cache_ids=["a", "b", "c"])
        cells = cells_of(cache._repr_html_())
        assert after(cells, "entries") == "0 and 6 pending"
        cache.flush()
        cells = cells_of(cache._repr_html_())
        stats = cells_of(cache.stats()._repr_html_())
    assert after(cells, "entries") == after(stats, "entries") == "6"
    assert after(cells, "hits") == "6 of 12, 50%"
    assert after(cells, "full").endswith("%")
    assert "of 8.0 MB" in after(cells, "full")
    assert sum(cell.startswith("net@") for cell in cells) == 1
    assert after(cells, "net") == "3"
    cells = cells_of(cache._repr_html_())
    assert cells[1].endswith("closed")


def test_an_id_is_escaped_and_cut(tmp_path: Path) -> None:
    with ws.FeatureCache(tmp_path, "<script>" + "x" * 150) as cache:
        html = cache._repr_html_()
    assert "script" not in read_html(html).tags


def test_without_a_limit_there_is_no_share(tmp_path: Path) -> None:
    with ws.FeatureCache(tmp_path, "net") as cache:
        cells = cells_of(cache._repr_html_())
    assert after(cells, "size") == "0 B"
    assert "full" not in cells
