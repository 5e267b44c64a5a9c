"""JAX over two processes: the rows of all make global arrays, in which every sample is once."""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.interop.checks import ENVIRONMENT
from tests.ports import free_port

SAMPLES, MIDDLE = 41, 2


@pytest.mark.skipif(find_spec("jax") is None, reason="needs jax")
def test_global_arrays_hold_every_sample_once(tmp_path: Path) -> None:
    port = free_port()
    command = [sys.executable, "-m", "tests.interop.loops.jax_processes"]
    processes = [
        subprocess.Popen(
            [*command, str(rank), str(port), str(tmp_path)], stderr=subprocess.PIPE, text=True, env=ENVIRONMENT
        )
        for rank in range(2)
    ]
    errors = [process.communicate()[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], errors
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    epochs = list(zip(*(rank["epochs"] for rank in ranks), strict=True))
    for epoch in epochs:
        assert sorted(number for rank in epoch for batch in rank["seen"] for number in batch) == list(range(SAMPLES))
        assert epoch[0]["sums"] == epoch[1]["sums"]
        assert sum(epoch[0]["sums"]) == sum(range(SAMPLES))
    assert epochs[0][0]["seen"] != epochs[1][0]["seen"]
    for rank in ranks:
        assert rank["rest"] == [rank["epochs"][1]["seen"][MIDDLE:], rank["epochs"][2]["seen"]]
