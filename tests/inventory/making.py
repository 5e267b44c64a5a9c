"""One folder of every kind, made as programs make them."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from tests.compiling.environments import HERE
from tests.pipeline.making import plan_of
from torch import nn

import warmstore as ws
from warmstore.compiling.store.artifact_store import ArtifactStore
from warmstore.inventory.cached_folder import CachedFolder
from warmstore.inventory.discovery import find
from warmstore.inventory.folder_states import read_states


class Scale(nn.Module):
    """A frozen module."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.register_buffer("factor", torch.tensor(factor))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor


def features(folder: Path, id: str, factor: float = 1.0, **options: Any) -> Path:
    """A feature cache of four samples, of which each was computed once and found once."""
    with ws.FeatureCache(folder, id, **options) as cache:
        module = ws.CachedModule(Scale(factor), cache)
        for _ in range(2):
            module(torch.ones(4, 3), cache_ids=range(4))
        cache.flush()
        return cache.path


def tripled(value: int) -> list[int]:
    return [value] * 3


def functions(folder: Path) -> Path:
    """Two results of a function, of which one was found."""
    function = ws.cached(folder)(tripled)
    for value in (1, 2, 1):
        function(value)
    function.cache.close()
    return function.cache.path


def store(folder: Path) -> Path:
    """A record store of ten records."""
    with ws.RecordStore.create(folder, {"x": ws.Array("int64")}) as made:
        made.extend({"x": np.arange(10)})
    return folder


def doubled(value: Any, by: int = 2) -> Any:
    return np.full(100, value * by)


def pipeline(folder: Path, by: int = 2) -> ws.Pipeline:
    """A pipeline whose thirty samples are in a folder."""
    pipe = ws.Pipeline(range(30)).step(doubled, by=by)
    pipe.fill(disk_plan(pipe, folder), workers=0, progress=False)
    pipe.close()
    return pipe


def disk_plan(pipe: Any, folder: Path) -> Any:
    return plan_of(pipe, [(1, "disk", "raw")], [len(pipe)], folder=folder)


def compiled(folder: Path) -> Path:
    """A compile cache of three artifacts, of which the first was used twice and is used last."""
    with ArtifactStore(folder) as made:
        for key in "abc":
            made.put(key, "cpp.so", key.encode() * 5000, environment=HERE, seconds=2.0)
        found = made.find("a", None, HERE)
        assert found is not None
        made.used([found, found])
    return folder


def states(*folders: Path) -> list[CachedFolder]:
    return list(read_states(find(folders)))
