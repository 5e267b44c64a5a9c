"""Loaders of several ranks against the order of their samples: epochs, breaks, states, other ranks and batch sizes.

The ranks of one run step together. Whatever happened before, the rows of a step are the next places of the order, each
once, and the random numbers of a batch depend on its place alone.
"""

import copy
import json
import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from tests.slow import either
from tests.state_machines import run_machine

import warmstore as ws
from warmstore.loading.samplers.sampler import Sampler

pytestmark = pytest.mark.forks

SAMPLERS: list[Sampler] = [
    ws.Sequential(),
    ws.Shuffle(seed=3),
    ws.BlockShuffle(4, window=2, seed=1),
    ws.Uniform(seed=2),
]


def draw(batch: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    return {**batch, "drawn": np.full(len(batch["x"]), rng.integers(1 << 60))}


failing: set[int] = set()
"""Samples that cannot be read once."""


class Samples:
    """The numbers from 0 on."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, at: int) -> np.int64:
        if at in failing:
            failing.remove(at)
            raise OSError(f"{at} cannot be read")
        return np.int64(at)


shapes = st.fixed_dictionaries(
    {
        "ranks": st.integers(1, 3),
        "batch_size": st.integers(1, 5),
        "ahead": st.sampled_from([{"workers": 0}, {"workers": 0}, {"workers": 2}, {"workers": 2}, {"processes": 1}]),
        "prefetch": st.integers(1, 3),
    }
)


class LoaderMachine(RuleBasedStateMachine):
    """`epoch` and `place` are those of the next step, as the documentation of `Loader` defines them."""

    def __init__(self) -> None:
        super().__init__()
        self.loaders: list[ws.Loader] = []

    @initialize(
        count=st.integers(1, 23), sampler=st.sampled_from(SAMPLERS), uneven=st.sampled_from(["pad", "full"]),
        resume=st.booleans(), is_random=st.booleans(), shape=shapes,
    )  # fmt: skip
    def begin(
        self, count: int, sampler: Sampler, uneven: str, resume: bool, is_random: bool, shape: dict[str, Any]
    ) -> None:
        self.count, self.sampler = count, sampler
        self.options = {"uneven": uneven, "resume_partial": resume, "random": is_random}
        self.epoch = self.place = 0
        self.named: int | None = None
        self.is_loaded = False
        self.running: list[Iterator[Any]] = []
        self.states: list[tuple[dict[str, Any], int, int]] = []
        self.drawn: dict[Any, int] = {}
        self.open(shape)

    def open(self, shape: dict[str, Any]) -> None:
        self.shape = shape
        options = {"prefetch": shape["prefetch"], **shape["ahead"]}
        if self.options["random"]:
            options["transform"] = draw
        self.loaders = [
            ws.Loader(
                {"x": Samples(self.count)}, shape["batch_size"], self.sampler, rank=rank, world_size=shape["ranks"],
                **self.options, **options,
            )
            for rank in range(shape["ranks"])
        ]  # fmt: skip
        self.running = []

    def order(self, epoch: int) -> list[int]:
        """The order of an epoch, as one calm loader gives it."""
        with ws.Loader(np.arange(self.count), self.count, self.sampler, workers=0) as loader:
            loader.set_epoch(epoch)
            return next(iter(loader)).tolist()

    # Training

    def step(self) -> None:
        if not self.running:
            if self.named is not None:
                self.epoch, self.place = self.named, 0
            elif self.place and not (self.is_loaded or self.options["resume_partial"]):
                self.epoch, self.place = self.epoch + (not isinstance(self.sampler, ws.Sequential)), 0
            self.named = None
            self.running = [iter(loader) for loader in self.loaders]
        taken = self.shape["ranks"] * self.shape["batch_size"]
        rows: list[int] = []
        for rank, batches in enumerate(self.running):
            batch = next(batches)
            rows += batch["x"][batch.get("valid", np.ones(len(batch["x"]), bool))].tolist()
            if "drawn" in batch and len(batch["x"]):
                place = self.epoch, self.place, rank, self.shape["ranks"], self.shape["batch_size"]
                assert self.drawn.setdefault(place, int(batch["drawn"][0])) == int(batch["drawn"][0])
        assert sorted(rows) == sorted(self.order(self.epoch)[self.place : self.place + taken])
        self.place += taken
        self.is_loaded = False
        if self.place >= self.count:
            self.epoch, self.place = self.epoch + 1 if self.named is None else self.named, 0
            self.named = None
            for batches in self.running:
                assert next(batches, None) is None
            self.running = []

    @rule(steps=st.integers(1, 4))
    def train(self, steps: int) -> None:
        for _ in range(steps):
            self.step()

    @rule()
    def finish_the_epoch(self) -> None:
        self.step()
        while self.running:
            self.step()

    @precondition(lambda self: self.shape["ranks"] == 1 and self.shape["ahead"] == {"workers": 0})
    @rule(ahead=st.integers(0, 6))
    def fail(self, ahead: int) -> None:
        """A sample that cannot be read ends the loop at its step, which is not counted."""
        if not self.running:
            self.step()
        if self.running:
            at = min(self.place + ahead, self.count - 1)
            number = self.order(self.epoch)[at]
            at = self.order(self.epoch).index(number, self.place)
            failing.add(number)
            while self.place + self.shape["batch_size"] <= at:
                self.step()
            with pytest.raises(OSError, match=f"{number} cannot be read"):
                self.step()
            self.running = []

    @rule()
    def leave_the_loop(self) -> None:
        self.running = []

    @rule()
    def begin_without_reading(self) -> None:
        """It has no effect."""
        for loader in self.loaders:
            iter(loader)

    @rule(epoch=st.integers(0, 5))
    def set_epoch(self, epoch: int) -> None:
        for loader in self.loaders:
            loader.set_epoch(epoch)
        stays = self.is_loaded or self.options["resume_partial"]
        if self.place and epoch == self.epoch and stays:
            self.named = None
        elif self.place and not self.is_loaded:
            self.named = epoch
        elif self.place or epoch != self.epoch:
            self.epoch, self.place, self.named, self.is_loaded = epoch, 0, None, False

    # Stopping and resuming

    @rule()
    def save(self) -> None:
        saved = [json.dumps(loader.state_dict()) for loader in self.loaders]
        assert len(set(saved)) == 1
        self.states.append((json.loads(saved[0]), self.epoch, self.place))

    @precondition(lambda self: self.states)
    @rule(at=st.integers(0, 20), shape=st.none() | shapes)
    def load(self, at: int, shape: dict[str, Any] | None) -> None:
        """In these loaders, or in those of another run."""
        if shape is not None:
            self.close()
            self.open(shape)
        state, self.epoch, self.place = self.states[at % len(self.states)]
        for loader in self.loaders:
            loader.load_state_dict(copy.deepcopy(state))
        for batches in self.running:
            with pytest.raises(RuntimeError, match="load_state_dict has ended this"):
                next(batches)
        self.running, self.named, self.is_loaded = [], None, self.place > 0

    @rule()
    def copy_the_loaders(self) -> None:
        """A copy is at the same position, and a loop over the first one does not move it."""
        before, self.loaders = self.loaders, [pickle.loads(pickle.dumps(loader)) for loader in self.loaders]
        self.running = []
        for loader in before:
            loader.close()

    def close(self) -> None:
        for loader in self.loaders:
            loader.close()

    # What always holds

    @invariant()
    def the_epoch_and_length_are_known(self) -> None:
        for loader in self.loaders:
            taken = self.shape["ranks"] * self.shape["batch_size"]
            assert loader.epoch == (self.epoch if self.named is None else self.named)
            assert len(loader) == -(-self.count // taken)

    def teardown(self) -> None:
        self.close()


def test_loaders_give_the_order_of_their_samples() -> None:
    run_machine(LoaderMachine, either(25, 300), either(20, 40))
