"""The public attributes of public classes: what the documentation describes, and nothing of the inside."""

import inspect
import re
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest
from torch import nn

import warmstore as ws

PUBLIC: dict[str, str] = {
    "FeatureCache": """
        clear close closed fill fingerprint flush get get_batch items keys merge path pull push put_batch rebalance
        stats sync values writes
    """,
    "RecordStore": """
        add_field annotate append chunk_ranges clone close closed create delete drop_field extend fields filter flush
        gather map_field metadata nbytes open present pull push rebalance refresh seal sync to_arrow update verify
        with_format
    """,
    "Loader": """
        batch_sampler batch_size close closed collate_fn dataset drop_last epoch load_state_dict num_workers
        prefetch_factor sampler set_epoch skipped state_dict stream workers
    """,
    "Pipeline": """
        cacheable close closed dataset fill filter identities loader map plan profile pull push run source step steps
        sync
    """,
    "Plan": """
        band batch_size bound buckets build_seconds counts direct_io disk disk_used epoch_seconds epochs epochs_run
        explain fill_workers folder limits mean measured memory memory_used nbytes_of notes placements plot profile
        reasons samples samples_in steps strategy uncached_seconds worker_bytes workers world_size
    """,
    "Profile": """
        alone at batch_size counts delivery disk edges key load options overhead pace rounds samples save scaling
        source_nbytes stages took total
    """,
    "CachedModule": "",
    "FunctionCache": "call check_call_in_cache clear close closed flush path stats",
    "HashedId": "key of",
}
"""By class, without what `nn.Module` has."""

MADE = {
    "FeatureCache": "id read_only",
    "CachedModule": "cache enabled module",
    "RecordStore": "mode path",
}
"""Attributes that objects have besides, by class."""


def names(found: Any, *, without: frozenset[str] = frozenset()) -> list[str]:
    return sorted(name for name in found if not name.startswith("_") and name not in without)


def _fields(cls: Any) -> set[str]:
    return {each.name for each in fields(cls)} if is_dataclass(cls) else set()


@pytest.mark.parametrize("name", PUBLIC)
def test_classes(name: str) -> None:
    cls = getattr(ws, name)
    without = frozenset(dir(nn.Module)) if issubclass(cls, nn.Module) else frozenset()
    assert names({*dir(cls), *_fields(cls)}, without=without) == sorted(PUBLIC[name].split())


def test_objects(tmp_path: Path) -> None:
    with ws.FeatureCache(tmp_path, "id") as cache, ws.RecordStore.create(tmp_path / "s", {"x": ws.Json()}) as store:
        module = ws.CachedModule(nn.Identity(), cache)
        for made in (cache, store, module):
            cls = type(made)
            has = names(dir(made), without=frozenset((*dir(cls), *vars(nn.Module()), "training")))
            assert has == sorted(MADE[cls.__name__].split()), cls


@pytest.mark.parametrize("name", PUBLIC)
def test_everything_public_is_documented(name: str) -> None:
    cls = getattr(ws, name)
    told = " ".join(inspect.getdoc(each) or "" for each in cls.__mro__ if is_dataclass(each))
    for attribute in PUBLIC[name].split():
        if attribute in _fields(cls):
            assert re.search(rf"\b{attribute}\b", told), attribute
            continue
        value = inspect.getattr_static(cls, attribute)
        if callable(value) or isinstance(value, property | classmethod | staticmethod):
            assert inspect.getdoc(getattr(cls, attribute)), attribute
