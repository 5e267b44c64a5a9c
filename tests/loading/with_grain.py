"""Stores, fields and data sets as Grain data sources. `test_frameworks` runs this in a process of its own."""

import importlib
import pickle
from typing import Any

import numpy as np
import pytest

import warmstore as ws

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::RuntimeWarning")


@pytest.fixture(autouse=True)
def grain() -> Any:
    return importlib.import_module("grain")


def test_map_data_sets(grain: Any, store: ws.RecordStore) -> None:
    for source in (store, ws.Dataset(store, fields=["number"]), ws.Dataset({"number": store["number"]})):
        data = grain.MapDataset.source(source).shuffle(seed=1).map(lambda sample: {"number": sample["number"]}).batch(4)
        found = [at for batch in data for at in batch["number"].tolist()]
        assert sorted(found) == list(range(23))
    assert grain.MapDataset.source(store["number"])[7] == 7


def test_it_is_a_random_access_data_source(grain: Any, store: ws.RecordStore) -> None:
    for source in (store, store["number"], ws.Dataset(np.arange(3))):
        assert isinstance(source, grain.sources.RandomAccessDataSource)
        assert len(pickle.loads(pickle.dumps(source))) == len(source)


def test_grains_own_loader(grain: Any, store: ws.RecordStore) -> None:
    sampler = grain.samplers.IndexSampler(num_records=23, shuffle=True, seed=3, num_epochs=1)
    loader = grain.DataLoader(data_source=store["number"], sampler=sampler, worker_count=0)
    assert sorted(int(at) for at in loader) == list(range(23))
