"""What the test of JAX in two processes runs: global arrays of every sample, exactly once, and a resume.

python -m tests.interop.loops.jax_processes RANK PORT FOLDER
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ |= {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import warmstore as ws

SAMPLES, BATCH, MIDDLE = 41, 4, 2


def make_loader() -> ws.Loader:
    """Global arrays of 8 rows over four devices, two of each process."""
    sharding = NamedSharding(Mesh(np.array(jax.devices()), ("rows",)), PartitionSpec("rows"))
    source = {"number": np.arange(SAMPLES, dtype=np.int32)}
    ranks = {"rank": jax.process_index(), "world_size": jax.process_count()}
    return ws.Loader(source, BATCH, ws.Shuffle(seed=5), uneven="full", to=sharding, **ranks)


@jax.jit
def total(batch: Any) -> Any:
    """The sum of the numbers, over all processes."""
    return (batch["number"] * batch["valid"]).sum()


def local(batch: Any) -> list[int]:
    """This process's numbers, without repeated rows."""
    rows = [np.asarray(shard.data) for shard in batch["number"].addressable_shards]
    valid = [np.asarray(shard.data) for shard in batch["valid"].addressable_shards]
    return np.concatenate(rows)[np.concatenate(valid)].tolist()


def main(rank: int, port: str, folder: Path) -> None:
    """Three epochs; then from the middle of the second one to the end, with another loader."""
    jax.distributed.initialize(f"127.0.0.1:{port}", 2, rank)
    loader, epochs, state = make_loader(), [], {}
    for epoch in range(3):
        seen, sums = [], []
        for step, batch in enumerate(loader, 1):
            assert batch["number"].shape == (2 * BATCH,)
            seen.append(local(batch))
            sums.append(int(total(batch)))
            if (epoch, step) == (1, MIDDLE):
                state = json.loads(json.dumps(loader.state_dict()))
        epochs.append({"seen": seen, "sums": sums})
    again = make_loader()
    again.load_state_dict(state)
    rest = [[local(batch) for batch in again] for _ in range(2)]
    (folder / f"{rank}.json").write_text(json.dumps({"epochs": epochs, "rest": rest}))
    jax.distributed.shutdown()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
