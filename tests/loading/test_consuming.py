"""However batches are taken, an epoch that is finished has every sample once."""

import json
import os
from collections import Counter
from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.slow import either
from torch.utils.data import DataLoader

import warmstore as ws

pytestmark = pytest.mark.forks

COUNT, SIZE = 17, 4

ways = st.lists(
    st.tuples(
        st.sampled_from(["for", "zip", "islice", "next", "break", "exception", "fork", "resume", "peek", "set_epoch"]),
        st.integers(0, 6),
    ),
    max_size=6,
)


def consume(loader: Any, way: str, steps: int) -> list[int] | None:
    """Take batches in some way: the samples of a finished epoch, or None where it was left."""
    taken: list[Any] = []
    whole = len(loader)
    if way == "for":
        taken = list(loader)
    elif way == "zip":
        taken = [batch for _, batch in zip(range(whole), loader, strict=False)]
    elif way == "islice":
        taken = list(islice(loader, whole))
    elif way == "next":
        batches = iter(loader)
        taken = [next(batches) for _ in range(whole)]
    elif way in ("break", "exception"):
        try:
            for number, batch in enumerate(loader):
                if number == steps:
                    if way == "exception":
                        raise LookupError
                    break
                taken.append(batch)
        except LookupError:
            pass
        if len(taken) < whole:
            return None
    elif way == "fork":
        batches = iter(loader)
        taken = list(islice(batches, steps))
        rest = in_child(batches)
        return [at for batch in taken for at in numbers(batch)] + rest
    elif way == "peek":
        batches = iter(loader)
        taken = list(islice(batches, steps))
        next(iter(loader))
        taken += list(batches)
    elif way == "resume":
        state = None
        for batch in loader:
            taken.append(batch)
            state = loader.state_dict()
            if len(taken) > steps:
                break
        if state is not None and len(taken) < whole:
            loader.load_state_dict(json.loads(json.dumps(state)))
            taken += list(loader)
    elif way == "set_epoch":
        loader.set_epoch(steps)
        taken = list(loader)
    return [at for batch in taken for at in numbers(batch)]


def numbers(batch: Any) -> list[int]:
    return [int(at) for at in (batch["x"] if isinstance(batch, dict) else batch)]


def in_child(batches: Any) -> list[int]:
    """What a forked child gets from an iterator; the parent takes no more of it."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.write(write, json.dumps([at for batch in batches for at in numbers(batch)]).encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as said:
        found: list[int] = json.load(said)
    os.waitpid(child, 0)
    return found


def check(loader: Any, ways: list[tuple[str, int]]) -> None:
    for way, steps in [*ways, ("for", 0)]:
        found = consume(loader, way, steps)
        if found is not None:
            assert Counter(found) == Counter(range(COUNT)), (way, steps)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
@pytest.mark.parametrize("workers", [0, 2])
@settings(max_examples=either(20, 40))
@given(ways, st.sampled_from(["shuffle", "sequential"]))
def test_of_a_loader(workers: int, ways: list[tuple[str, int]], sampler: str) -> None:
    with ws.Loader(np.arange(COUNT), SIZE, sampler, workers=workers, prefetch=2) as loader:
        check(loader, ways)


@settings(max_examples=either(20, 40))
@given(ways, st.sampled_from(["shuffle", "sequential"]))
def test_of_a_batch_sampler(ways: list[tuple[str, int]], sampler: str) -> None:
    check(Positions(ws.BatchSampler(COUNT, SIZE, sampler)), ways)


@settings(max_examples=either(20, 40))
@given(ways, st.sampled_from(["shuffle", "sequential"]))
def test_of_torchs_loader_over_one(ways: list[tuple[str, int]], sampler: str) -> None:
    data = ws.Dataset({"x": np.arange(COUNT)})
    drawn = ws.BatchSampler(data, SIZE, sampler)
    check(Driven(DataLoader(data, batch_sampler=drawn, collate_fn=ws.collate), drawn), ways)  # type: ignore[arg-type]


class Positions:
    """A batch sampler by itself."""

    def __init__(self, sampler: ws.BatchSampler) -> None:
        self.sampler = sampler

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Any:
        return iter(self.sampler)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.sampler, name)


class Driven(Positions):
    """torch's DataLoader, with the states of its batch sampler."""

    def __init__(self, loader: Any, sampler: ws.BatchSampler) -> None:
        super().__init__(sampler)
        self.loader = loader

    def __iter__(self) -> Any:
        return iter(self.loader)
