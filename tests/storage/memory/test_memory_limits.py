"""Memory of a process in a container: what its control groups allow, and not what the machine has."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from tests.faults.children import in_child, well
from tests.faults.memory_cgroup import MemoryCgroup
from tests.native.control_groups import mount

from warmstore._native import cgroups
from warmstore._native.cgroups import group_folders
from warmstore.storage.files import lies_in_memory
from warmstore.storage.memory.memory_limits import available_memory, total_memory

MB = 1 << 20
UNLIMITED = "9223372036854771712"  # in version 1


@pytest.mark.forks
def test_memory_in_a_control_group(tmp_path: Path, memory_cgroup: MemoryCgroup) -> None:
    """Page cache counts as available, as it does for a machine; files in memory do not."""

    def work(say: Callable[[Any], None]) -> None:
        before = total_memory()
        memory_cgroup.enter()
        memory_cgroup.leave(64 * MB)
        say((before, total_memory(), available_memory()))
        with (tmp_path / "file").open("wb") as file:
            for _ in range(256):
                file.write(bytes(MB // 16))
        say(available_memory())
        taken = np.ones(16 * MB, np.uint8)
        say(available_memory())
        del taken

    (before, total, available), with_file, with_array = well(in_child(work))
    assert before > 64 * MB
    assert 64 * MB <= total < 80 * MB
    assert total - 4 * MB < available <= total
    assert abs(available - with_file - lies_in_memory(tmp_path) * 16 * MB) < 4 * MB
    assert 12 * MB < with_file - with_array < 20 * MB


def v2(folder: str, most: str, used: int, cached: int) -> dict[str, str]:
    """Files of a group of version 2."""
    stat = f"anon {used - cached}\nfile {cached}\nactive_file {cached - 10}\ninactive_file 10\n"
    names = {"memory.max": most, "memory.current": str(used), "memory.stat": stat}
    return {f"{folder}{name}": text for name, text in names.items()}


def v1(folder: str, most: str, used: int, cached: int) -> dict[str, str]:
    """Files of a group of version 1."""
    stat = f"active_file 0\ninactive_file 0\ntotal_active_file {cached - 10}\ntotal_inactive_file 10\n"
    names = {"memory.limit_in_bytes": most, "memory.usage_in_bytes": str(used), "memory.stat": stat}
    return {f"memory/{folder}{name}": text for name, text in names.items()}


@pytest.mark.parametrize(
    ("own", "files", "total", "available"),
    [
        pytest.param(
            "0::/job/step\n", v2("job/", "5000", 4000, 1000) | v2("job/step/", "max", 900, 100), 5000, 2000, id="above"
        ),
        pytest.param(
            "0::/job/step\n", v2("job/", "9000", 8500, 500) | v2("job/step/", "6000", 900, 100), 6000, 1000, id="both"
        ),
        pytest.param("0::/\n", v2("", "7000", 9000, 1000), 7000, 0, id="container"),
        pytest.param(
            "5:cpu,cpuacct:/\n4:memory:/job\n0::/user\n",
            v1("job/", "5000", 4000, 1000) | v1("", UNLIMITED, 1 << 40, 1000),
            5000,
            2000,
            id="version 1",
        ),
        pytest.param("4:memory:/docker/a1\n", v1("", "5000", 900, 100), 5000, 4200, id="container of version 1"),
        pytest.param("0::/job\n", v2("job/", "max", 900, 100), None, None, id="no limit"),
        pytest.param("0::/job\n", {}, None, None, id="no controller"),
    ],
)
def test_limits_of_groups(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    own: str,
    files: dict[str, str],
    total: int | None,
    available: int | None,
) -> None:
    mount(tmp_path, monkeypatch, own, files)
    machine = psutil.virtual_memory()
    assert total_memory() == (machine.total if total is None else total)
    if available is None:
        assert available_memory() > machine.available // 2
    else:
        assert available_memory() == available


def test_a_system_without_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroups, "_OWN", tmp_path / "none")
    assert group_folders("memory") == []
    assert total_memory() == psutil.virtual_memory().total
