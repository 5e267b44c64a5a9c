"""Arrays that stay on the disk, as zarr has them: they count by the files of their store."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
import zarr.storage

import warmstore as ws
from warmstore.identity.identity import identify


def made(folder: Path, last: float = 7.0) -> Any:
    group = zarr.open_group(folder, mode="w")
    group.create_array("a", data=np.array([1.0, 2.0, last]), chunks=(1,))
    group.create_array("b", data=np.array([3.0]))
    return group


def test_what_is_written_into_an_array_counts(tmp_path: Path) -> None:
    array = made(tmp_path / "zarr")["a"]
    before = identify(array)
    assert f"zarr {zarr.__version__}" in before.facts["version of zarr"]
    assert array[0] == 1  # it keeps codecs now
    assert identify(array) == before == identify(zarr.open_group(tmp_path / "zarr", mode="r")["a"])
    array[2] = 8
    assert "folder of" in identify(array).difference(before)
    assert identify(made(tmp_path / "zarr")["b"]).digest != before.digest


@pytest.mark.parametrize("of", [lambda group: group, lambda group: group["a"], lambda group: {"x": [group["a"]]}])
def test_a_cached_function_sees_writes(tmp_path: Path, of: Any) -> None:
    group, seen = made(tmp_path / "zarr"), []

    @ws.cached(tmp_path / "cache", ignore=["seen"])
    def total(values: Any, seen: list[int]) -> float:
        seen.append(1)
        array = (
            values["x"][0] if isinstance(values, dict) else values["a"] if isinstance(values, zarr.Group) else values
        )
        return float(array[:].sum())

    for _ in range(2):
        assert total(of(group), seen) == 10
        assert total(of(zarr.open_group(tmp_path / "zarr")), seen) == 10
    assert len(seen) == 1
    zarr.open_group(tmp_path / "zarr")["a"][0] = 41  # by another object
    assert total(of(group), seen) == 50
    assert len(seen) == 2


class Named(zarr.storage.LocalStore):
    """A store of the program."""


def test_a_store_of_a_class_of_the_program_counts_by_its_files(tmp_path: Path) -> None:
    group = made(tmp_path / "zarr")
    own = zarr.open_group(Named(tmp_path / "zarr"))["a"]
    before = identify(own)
    group["a"][0] = 5
    assert "folder of" in identify(own).difference(before)


def test_arrays_in_memory_count_by_value() -> None:
    one, equal, other = (zarr.array(np.array([1, last])) for last in (2, 2, 3))
    assert identify(one).digest == identify(equal).digest != identify(other).digest


def test_a_remote_store_is_refused(tmp_path: Path) -> None:
    made(tmp_path / "zarr")
    store = zarr.storage.FsspecStore.from_url((tmp_path / "zarr").as_uri(), read_only=True)
    (reason,) = identify(zarr.open_group(store, mode="r")["a"]).unknown.values()
    assert reason == "what a FsspecStore holds is out of reach; pass the paths of its files"
