"""A store that says of every value which record it belongs to."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import warmstore as ws

COUNT = 23


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ws.RecordStore]:
    """23 records: number i, image full of i, i points, i bytes, and a title."""
    fields = {
        "number": ws.Array("int64"),
        "image": ws.Array("float32", (2, 3)),
        "points": ws.Ragged("float32", ndim=2),
        "jpeg": ws.Bytes(codec="zstd"),
        "title": ws.Text(),
    }
    numbers = np.arange(COUNT)
    with ws.RecordStore.create(tmp_path / "store", fields) as writer:
        writer.extend(
            {
                "number": numbers,
                "image": np.broadcast_to(numbers[:, None, None], (COUNT, 2, 3)).astype(np.float32),
                "points": [np.full((at, 2), at, np.float32) for at in range(COUNT)],
                "jpeg": [bytes([at]) * at for at in range(COUNT)],
                "title": [f"title {at}" for at in range(COUNT)],
            }
        )
    with ws.RecordStore.open(tmp_path / "store") as reader:
        yield reader
