"""How each contestant of `staleness` keeps the answers of a program and finds them again.

A contestant gets the program, a folder that stays from run to run, and `calls`, to be entered while it answers: calls
of the program's own function made there are counted. It returns one answer for each of the program's values.
"""

from __future__ import annotations

import contextlib
import logging
import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_DISK = 16 << 20  # bytes for a pipeline of three small answers


class RefusedError(Exception):
    """A contestant says that it cannot keep this."""


@dataclass(frozen=True)
class Program:
    """What a program defines: see `benchmarks.programs.case`."""

    step: Callable[..., dict[str, Any]]
    arguments: dict[str, Any]
    values: list[Any]
    model: Any = None


Calls = contextlib.AbstractContextManager[Any]
Answers = list[Any]


@dataclass(frozen=True)
class Peer:
    """A contestant. imports: what it needs, as "module" or "module:name". modules: it keeps outputs of modules only."""

    name: str
    imports: tuple[str, ...]
    answer: Callable[[Program, Path, Calls], Answers]
    modules: bool = False
    ours: bool = False


def uncached(program: Program, folder: Path, calls: Calls) -> Answers:
    with calls:
        return [program.step(value, **program.arguments)["y"] for value in program.values]


def datasets_map(program: Program, folder: Path, calls: Calls) -> Answers:
    """`map` over a data set on the disk, whose folder keeps what `map` makes."""
    import datasets

    datasets.disable_progress_bars()
    source = folder / "source"
    if not source.exists():
        datasets.Dataset.from_dict({"value": program.values}).save_to_disk(source)
    dataset = datasets.load_from_disk(source)
    with calls, refused_in_log("datasets.fingerprint", "couldn't be hashed properly"):
        mapped = dataset.map(program.step, input_columns="value", fn_kwargs=program.arguments)
        return list(mapped["y"])


def joblib_memory(program: Program, folder: Path, calls: Calls) -> Answers:
    import joblib

    cached = joblib.Memory(folder, verbose=0).cache(program.step)
    with calls:
        return [cached(value, **program.arguments)["y"] for value in program.values]


def dask_tokenize(program: Program, folder: Path, calls: Calls) -> Answers:
    """A file for each call, named by the token of the step and its arguments; a token that would be random raises."""
    from dask.base import tokenize

    def cached(value: Any) -> Any:
        path = folder / tokenize(program.step, value, program.arguments, ensure_deterministic=True)
        if not path.exists():
            path.write_bytes(pickle.dumps(program.step(value, **program.arguments)))
        return pickle.loads(path.read_bytes())["y"]

    folder.mkdir(parents=True, exist_ok=True)
    with calls:
        return [cached(value) for value in program.values]


def pipeline(program: Program, folder: Path, calls: Calls) -> Answers:
    """A step that is forced onto the disk, under a plan with the shortest profile there is."""
    import warmstore as ws

    with refused_by_error():
        pipe = ws.Pipeline(program.values).step(program.step, cache="disk", **program.arguments)
        profile = pipe.profile(samples=len(program.values), seconds=0.01, max_workers=0, progress=False)
        plan = pipe.plan(profile=profile, disk=_DISK, folder=folder, workers=0)
        with calls, pipe.loader(plan, len(program.values), workers=0, sampler=ws.Sequential(), epochs=1) as loader:
            (batch,) = loader
            answers = batch["y"]
            return answers.tolist() if hasattr(answers, "tolist") else list(answers)


def cached_module(program: Program, folder: Path, calls: Calls) -> Answers:
    """Each identity of the module has its own version of the cache."""
    import torch

    import warmstore as ws

    with refused_by_error(), ws.FeatureCache(folder, "model", versions="new") as cache, calls:
        features = ws.CachedModule(program.model, cache)
        answers: Answers = features(torch.tensor(program.values), cache_ids=range(len(program.values))).tolist()
        return answers


def torchcachex(program: Program, folder: Path, calls: Calls) -> Answers:
    """The module is identified by a name that its user chooses, and keeps it."""
    import torch
    from torchcachex import ArrowIPCCacheBackend, CacheModuleDecorator

    backend = ArrowIPCCacheBackend(str(folder), "model", async_write=False, flush_every=1)
    features = CacheModuleDecorator(program.model, backend)
    ids = [str(number) for number in range(len(program.values))]
    with calls:
        answers: Answers = features(torch.tensor(program.values), cache_ids=ids).tolist()
    backend.flush()
    return answers


@contextlib.contextmanager
def refused_in_log(logger: str, words: str) -> Iterator[None]:
    """Raise RefusedError at the end if that logger, or one below it, warned in those words."""
    messages: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger(logger).addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger(logger).removeHandler(handler)
    if refusals := [message for message in messages if words in message]:
        raise RefusedError(refusals[0])


@contextlib.contextmanager
def refused_by_error() -> Iterator[None]:
    """Turn warmstore's own refusal into RefusedError."""
    import warmstore as ws

    try:
        yield
    except getattr(ws, "NoFingerprint", ()) as error:
        raise RefusedError(str(error)) from error


UNCACHED = "uncached"
PEERS = {
    UNCACHED: Peer(UNCACHED, (), uncached),
    "pipeline": Peer("warmstore, Pipeline", ("scipy.optimize", "warmstore:Pipeline"), pipeline, ours=True),
    "module": Peer("warmstore, CachedModule", ("warmstore:CachedModule",), cached_module, modules=True, ours=True),
    "datasets": Peer("datasets.map", ("datasets",), datasets_map),
    "joblib": Peer("joblib.Memory", ("joblib",), joblib_memory),
    "dask": Peer("dask.tokenize", ("dask.base",), dask_tokenize),
    "torchcachex": Peer("torchcachex", ("torchcachex",), torchcachex, modules=True),
}
