"""Do two processes share one cache live: is what one has flushed a hit for the other, and never computed twice?

An observation, not a race: counts of rows, not times. First in step (one computes and flushes, the other asks for
those very rows at once), then unsynchronised from opposite ends of the same samples until they meet.
"""

from __future__ import annotations

import multiprocessing
from contextlib import closing
from multiprocessing.connection import Connection
from pathlib import Path

import torch

import warmstore as ws
from benchmarks.backbones import Echo, SlowEcho, frozen
from benchmarks.keepers import BATCH, FLUSH
from benchmarks.report import Bar, Report, Table
from benchmarks.settings import Settings

WIDTH = 64


def run(settings: Settings) -> Report:
    flushes = settings.pick(40, 3)
    in_step = _in_step(settings.folder / "in-step", flushes)
    late = sum(bool(computed) for _, _, computed, _ in in_step)
    again = sum(computed for _, _, computed, _ in in_step)
    wrong = sum(wrong for *_, wrong in in_step)
    count = settings.pick(50, 4) * FLUSH
    ends = _from_both_ends(settings.folder / "both-ends", count)
    computed = sum(ends)
    table = Table(
        "One computes and flushes, the other asks for the same rows right after each flush",
        ("", "flushes", "rows flushed", "hits of the reader", "rows computed again", "wrong rows"),
        (("in step", flushes, flushes * FLUSH, flushes * FLUSH - again, again, wrong),),
    )
    met = Table(
        "Both compute, from opposite ends of the same samples, until everything is cached",
        ("", "samples", "computed by one", "by the other", "computed twice"),
        (("unsynchronised", count, *ends, computed - count),),
    )
    return Report(
        "processes",
        f"Two processes over one cache, flushes of {FLUSH:,} samples, batches of {BATCH}; rows counted.",
        (table, met),
        (
            Bar.at_most("flushes the reader was not yet to see one flush later", late, 0),
            Bar.at_most("flushed rows computed again, in step", again, 0),
            # What neither had flushed when they met may be computed by both: about a flush each way.
            Bar.at_most("rows computed by both where they met", computed - count, 2 * FLUSH),
        ),
        broken=(f"{wrong} wrong rows",) if wrong else (),
    )


def values_of(ids: torch.Tensor) -> torch.Tensor:
    """What the backbone makes of a sample: numbers that only its id can give."""
    return ids[:, None].float() + torch.arange(WIDTH) / WIDTH


def _in_step(folder: Path, flushes: int) -> list[tuple[int, int, int, int]]:
    """For each flush: its number, the rows, those the reader computed again, and those it got wrong."""
    spawn = multiprocessing.get_context("spawn")
    (writer, writers_end), (reader, readers_end) = spawn.Pipe(), spawn.Pipe()
    workers = []
    for end, reads in ((writers_end, False), (readers_end, True)):
        workers.append(spawn.Process(target=_answer, args=(folder, end, reads)))
        workers[-1].start()
        end.close()  # the worker has its own; so a worker's death ends the parent's wait
    found = []
    try:
        for number in range(flushes):
            writer.send(number)
            assert writer.recv()[0] == FLUSH, "the writer did not compute its new rows"
            reader.send(number)
            found.append((number, FLUSH, *reader.recv()))
    finally:
        for end in (writer, reader):
            end.close()
        for worker in workers:
            worker.join()
    return found


def _answer(folder: Path, pipe: Connection, reads: bool) -> None:
    """One of the two in step: for each number asked, pass that flush's samples and tell (computed, wrong)."""
    with closing(ws.FeatureCache(folder, "live", flush_every=FLUSH)) as cache:
        backbone = frozen(Echo())
        counts = backbone.counts
        features = ws.CachedModule(backbone, cache)
        while True:
            try:
                number = pipe.recv()
            except EOFError:  # the parent has asked for the last flush
                return
            counts.clear()
            wrong = 0
            for first in range(number * FLUSH, (number + 1) * FLUSH, BATCH):
                ids = torch.arange(first, first + BATCH)
                right = values_of(ids)
                # The reader's input is empty of information: a hit is right, a row computed again is not.
                got = features(torch.zeros_like(right) if reads else right, cache_ids=ids)
                wrong += int((got != right).any(1).sum())
            if not reads:
                cache.flush()
            computed = sum(counts)
            pipe.send((computed, max(0, wrong - computed) if reads else wrong))


def _from_both_ends(folder: Path, count: int) -> list[int]:
    """Rows computed by each of two processes that pass all samples, one forwards and one backwards."""
    spawn = multiprocessing.get_context("spawn")
    ready, told = spawn.Barrier(2), spawn.SimpleQueue()
    workers = [spawn.Process(target=_pass_all, args=(folder, count, turn, ready, told)) for turn in (False, True)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if any(worker.exitcode for worker in workers):
        raise RuntimeError("one of the two processes failed; its own traceback says how")
    return [told.get() for _ in workers]


def _pass_all(folder: Path, count: int, backwards: bool, ready, told) -> None:
    with closing(ws.FeatureCache(folder, "live", flush_every=FLUSH)) as cache:
        backbone = frozen(SlowEcho())
        counts = backbone.counts
        features = ws.CachedModule(backbone, cache)
        ready.wait(timeout=60)  # not for ever: the other may have failed
        for first in range(0, count, BATCH):
            ids = torch.arange(first, first + BATCH)
            ids = count - 1 - ids if backwards else ids
            assert torch.equal(features(values_of(ids), cache_ids=ids), values_of(ids)), "wrong values"
    told.put(sum(counts))
