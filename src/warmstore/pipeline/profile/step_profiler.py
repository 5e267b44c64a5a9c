"""Measures steps and their results: seconds and bytes per sample, and the cost of storing and reading them."""

import math
import shutil
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from warmstore.errors import SampleSkipped, SchemaMismatch, UnsupportedType
from warmstore.loading.samplers.counter_rng import Int64
from warmstore.pipeline.batched_steps import row_of
from warmstore.pipeline.chain import Chain
from warmstore.pipeline.profile.profile import CODECS, Codec, Stage, StoredStage
from warmstore.pipeline.profile.source_sizes import bytes_of
from warmstore.pipeline.stacked_batch import StackedBatch, Uneven
from warmstore.pipeline.steps import singles
from warmstore.pipeline.tiers.flattening import flatten
from warmstore.pipeline.tiers.sample_schema import SampleSchema
from warmstore.pipeline.tiers.sample_spec import TreeSpec
from warmstore.pipeline.tiers.sample_staging import block_of
from warmstore.pipeline.trials.trial import changes
from warmstore.pipeline.trials.write_watch import WriteWatch
from warmstore.records.format.encoded_rows import EncodedRows
from warmstore.records.format.fields import Fields
from warmstore.records.format.record_batch import batch_size, header_size
from warmstore.records.format.value_encoding import compressed
from warmstore.replicate.record_store import RecordStore

Floats = np.ndarray[Any, np.dtype[np.float64]]
Tick = Callable[[float], object]
"""Shows progress, by the number of parts that are finished."""

KEPT = 16 << 20
"""Bytes of results per stage to measure a store with, at most."""

LAST = 256 << 20
"""Approximate bytes of final values to measure the transfer of batches with."""

_BLOCK = 16  # samples per block, at most
_BLOCK_BYTES = 256 << 20  # approximate bytes of the values of a block, at most
_QUEUED = Path("/proc/thread-self/schedstat")
_IO = Path("/proc/self/io")
_CACHES = 64 << 20  # bytes that displace the contents of the CPU's caches
_ROWS = 16  # records per read: about the share of one placement in a batch


@dataclass
class Measured:
    """Measurements of one stage so far: CPU seconds, seconds of waiting, bytes, and results of `room` bytes or more."""

    seconds: list[float] = field(default_factory=list)
    wait: list[float] = field(default_factory=list)
    warm: list[float] = field(default_factory=list)
    nbytes: list[int] = field(default_factory=list)
    kept: list[tuple[int, TreeSpec, list[Any]]] = field(default_factory=list)  # bucket, structure, leaves
    trouble: str = ""
    varies: bool = False
    kept_bytes: int = 0
    flattening: float = 0.0  # CPU seconds for all of `kept`, mostly of encoders and their checks
    room: int = KEPT

    def drop(self, first: int, samples: Collection[int]) -> None:
        """Leave out the measurements of some samples, by their index from the sample number `first` on."""
        for at in sorted(samples, reverse=True):
            for figures in (self.seconds, self.wait, self.warm, self.nbytes):
                del figures[first + at]


@dataclass
class ProfileRun:
    """The measured samples.

    stages: one more than steps. buckets: of each sample. last: some of the final values. largest: bytes of the largest
    stage of a sample, or 0 if no stage can be stored.
    """

    stages: list[Measured]
    buckets: list[int]
    last: list[Any]
    largest: int = 0


def run_steps(
    chain: Chain, indices: Int64, buckets: Sequence[int], until: float, tick: Tick, room: int = KEPT
) -> ProfileRun:
    """Run the steps on samples until the time is up.

    Each step runs on a block of samples before the next step does. Otherwise a light step would be timed with the data
    of a heavy step in the CPU caches, which is never the case when the heavy step's results are cached.

    Samples that a step skips are left out, and so are those that the source cannot read.

    Args:
        indices, buckets: the samples, and the bucket of each. until: of `time.perf_counter`. tick: called with a number
            of samples. room: bytes of results to keep per stage.

    Raises:
        Exception: of the first sample, if a step skips all samples or the source reads none.
    """
    run = ProfileRun([Measured(room=room) for _ in range(len(chain.steps) + 1)], [], [])
    each, first, first_batched = _first_calls(chain, indices, run, until), 0, singles(chain.steps)
    skipped: dict[int, Exception] = {}
    while first < len(indices) and not (first and time.perf_counter() > until):
        within = (until - time.perf_counter()) / max(each, 1e-9)
        size = max(1, int(min(_BLOCK, within, _BLOCK_BYTES / max(run.largest, 1))))
        block = indices[first : first + size].tolist()
        values: list[Any] = [None] * len(block)
        watch = WriteWatch(values, copies=True)
        skipped = {}
        known = len(run.buckets)
        for k, stage in enumerate(run.stages):
            queued, read = _seconds_in_queue(), _bytes_from_disk()
            began, worked = time.perf_counter(), time.process_time()
            stage.seconds += _run_stage(chain, k, block, values, skipped, is_batched=k > first_batched)
            spent, took = time.process_time() - worked, time.perf_counter() - began
            wait = max(0.0, took - spent - (_seconds_in_queue() - queued)) / len(block)
            stage.wait += [wait] * len(block)
            stage.warm += [0.0 if read is None or read != _bytes_from_disk() else wait] * len(block)
            watch.look(k)
            for at, bucket in enumerate(buckets[first : first + size]):
                _keep(stage, bucket, values[at], chain.cacheable >= k and at not in skipped)
            tick(len(block) / len(run.stages))
        suspects = block if watch.written() else []
        watch.restore()
        for index in suspects:
            _compare(chain, run, index, until)
        good = [at for at in range(len(block)) if at not in skipped]
        for stage in run.stages:
            stage.drop(known, skipped)
        run.buckets += [buckets[first + at] for at in good]
        if sum(run.stages[-1].nbytes[:first]) < LAST:
            run.last += [values[at] for at in good]
        first += len(block)
    if not run.buckets:
        raise next(iter(skipped.values()))
    return run


def _run_stage(
    chain: Chain, k: int, block: list[int], values: list[Any], skipped: dict[int, Exception], *, is_batched: bool
) -> list[float]:
    """Run step `k` on the values of a block, in place; for 0 read the source.

    Args:
        skipped: gets the errors of samples that the step skips or the source cannot read; those that are there are left
            alone.

    Returns:
        CPU seconds per sample.
    """
    seconds = [0.0] * len(block)
    places = [at for at in range(len(block)) if at not in skipped]
    if is_batched and places and (columns := _columns_of([values[at] for at in places])) is not None:
        started = time.process_time()
        try:
            columns = chain.run_batched(columns, np.array(block)[places], first=k - 1, last=k)
        except Exception as error:
            if isinstance(error, MemoryError) or chain.steps[k - 1].on_error == "raise":
                raise
        else:
            spent = time.process_time() - started
            for row, at in enumerate(places):
                values[at], seconds[at] = row_of(columns, row), spent / len(places)
            return seconds
    for at in places:
        started = time.process_time()
        try:
            values[at] = chain.source[block[at]] if not k else chain.run(values[at], block[at], first=k - 1, last=k)
        except Exception as error:
            if isinstance(error, MemoryError) or (k and not isinstance(error, SampleSkipped)):
                raise
            skipped[at], values[at] = error, None
        seconds[at] = time.process_time() - started
    return seconds


def _columns_of(values: list[Any]) -> Any:
    """Samples as the columns of a batch; None if batched steps take them one by one."""
    batch = StackedBatch(len(values), alike=True)
    try:
        for place, value in enumerate(values):
            batch.put(place, value)
    except Uneven:
        return None
    stacked = batch.stacked()
    return stacked if batch.is_as_one_by_one(stacked) else None


def _first_calls(chain: Chain, indices: Int64, run: ProfileRun, until: float) -> float:
    """Make the first calls of all steps, which take longer, and compare a sample. Returns the seconds of a sample."""
    each = 0.0
    for index in indices.tolist():
        began = time.perf_counter()
        compared = _compare(chain, run, index, until)
        each = (time.perf_counter() - began) / (2 if compared else 1)
        if compared or not _has_time(began, until):
            break
    return each


def _has_time(began: float, until: float) -> bool:
    """Whether twice what has taken since `began` is left."""
    now = time.perf_counter()
    return now + 2 * (now - began) < until


def _compare(chain: Chain, run: ProfileRun, index: int, until: float) -> bool:
    """Note which stages differ when a sample is computed twice, unless some are known already.

    Returns:
        Whether this is known now: not if a step fails on the sample, or if there is no time until `until`.
    """
    if any(stage.varies or stage.trouble for stage in run.stages):
        return True
    began = time.perf_counter()
    found = changes(chain, index, lambda: _has_time(began, until))
    if found is None:
        return False
    changed, reasons, run.largest = found
    for stage, differs, reason in zip(run.stages, changed, reasons, strict=True):
        stage.trouble = stage.trouble or (reason if differs else "")
    if any(changed) and not any(reasons):
        run.stages[changed.index(True)].varies = True
    return True


def _bytes_from_disk() -> int | None:
    """Bytes that disks have read for this process so far; None if the system does not count them."""
    try:
        return int(_IO.read_text().partition("\nread_bytes: ")[2].split()[0])
    except (OSError, IndexError, ValueError):
        return None


def _seconds_in_queue() -> float:
    """Seconds for which this thread was ready but had no core; no I/O wait. 0 if the system does not count them."""
    try:
        return int(_QUEUED.read_text().split()[1]) * 1e-9
    except (OSError, IndexError, ValueError):
        return 0.0


def _keep(stage: Measured, bucket: int, value: Any, cacheable: bool) -> None:
    began = time.process_time()
    try:
        structure, leaves = flatten(value, copy=False)
    except UnsupportedType as error:
        stage.trouble = stage.trouble or str(error)
        stage.nbytes.append(bytes_of(value))
        return
    spent, nbytes = time.process_time() - began, _nbytes(leaves)
    stage.nbytes.append(nbytes)
    if cacheable and stage.kept_bytes < stage.room:
        copies = [leaf.copy() if isinstance(leaf, np.ndarray) else leaf for leaf in leaves]
        stage.kept.append((bucket, structure, copies))
        stage.flattening += spent
        stage.kept_bytes += nbytes


def _nbytes(leaves: Sequence[Any]) -> int:
    return sum(leaf.nbytes if isinstance(leaf, np.ndarray) else len(leaf) for leaf in leaves)


def stage_of(
    name: str,
    measured: Measured,
    buckets: Sequence[int],
    counts: Sequence[int],
    folder: Path,
    until: float,
    tick: Tick,
) -> Stage:
    """The figures of a stage. Its results are stored in `folder` and read with each codec, while there is time.

    Args:
        buckets: of the measured samples. counts: samples per bucket, also those that were not measured.
    """
    where, count = np.array(buckets), len(counts)
    stored: dict[str, StoredStage] = {}
    if measured.kept and not measured.trouble:
        for codec in CODECS:
            if codec == "raw" or time.perf_counter() < until:
                try:
                    stored[codec] = _stored(measured, where, counts, codec, folder / codec)
                except (OSError, SchemaMismatch) as error:  # the latter: it is larger than a record may be
                    shutil.rmtree(folder, ignore_errors=True)
                    why = "there is no room to measure its store: " if isinstance(error, OSError) else ""
                    measured.trouble = f"{why}{error}"
            tick(1)
    seconds = np.array(measured.seconds)
    half = len(seconds) // 2
    return Stage(
        name,
        _means(seconds, where, count),
        _means(np.array(measured.wait), where, count),
        float(np.std(seconds)),
        _means(np.array(measured.nbytes, float), where, count),
        stored,
        measured.trouble,
        measured.varies,
        _means(np.array(measured.warm), where, count),
        tuple(_means(seconds[part], where[part], count) for part in (slice(half), slice(half, None))) if half else (),
    )


def _stored(measured: Measured, buckets: Int64, counts: Sequence[int], codec: Codec, folder: Path) -> StoredStage:
    schema = SampleSchema.of(
        [(structure, leaves) for _, structure, leaves in measured.kept], codec
    ) or SampleSchema.of_bytes(codec)
    figures: list[tuple[float, float, float, float, float]] = []
    spread = []
    in_memory = np.array(measured.nbytes, float)
    for bucket, total in enumerate(counts):
        kept = [sample for sample in measured.kept if sample[0] == bucket]
        values = [(structure, leaves) for _, structure, leaves in kept or measured.kept]
        began = time.process_time()
        block = _encoded(schema, values)
        wrote = (time.process_time() - began) / len(values)
        each = _record_bytes(schema.store_fields, block)
        reads, written = _read(schema, block, folder.with_name(f"{folder.name}-{bucket}"))
        everywhere = in_memory[buckets == bucket]
        mean, error = _mean_bytes(each, np.array([_nbytes(leaves) for _, leaves in values], float), everywhere, total)
        read, first, last = sorted(reads)[1], reads[0], reads[-1]
        figures.append((mean, read, first, last, measured.flattening / len(measured.kept) + wrote + written))
        spread.append(error)
    nbytes, read_all, first_read, last_read, write = (tuple(column) for column in zip(*figures, strict=True))
    per_batch = float(header_size(schema.store_fields))
    return StoredStage(
        nbytes, max(spread), read_all, write, float(schema.head_bytes), per_batch, (first_read, last_read)
    )


def _mean_bytes(stored: Floats, in_memory: Floats, everywhere: Floats, total: int) -> tuple[float, float]:
    """The mean bytes of a stored sample, and its relative standard error, by the ratio to the bytes in memory.

    The ratio varies less than the sizes, which are known of more samples.

    Args:
        stored, in_memory: bytes of some samples, float64 [n].
        everywhere: bytes in memory of all measured samples, float64 [m]. total: samples with those not measured.
    """
    if not len(everywhere) or not everywhere.all():
        in_memory = everywhere = np.ones(len(stored))
    ratio = float(stored.mean() / in_memory.mean())
    rest = _error(stored - ratio * in_memory, total) / max(float(stored.mean()), 1.0)
    return ratio * float(everywhere.mean()), math.hypot(rest, _error(everywhere, total) / float(everywhere.mean()))


def _error(values: Floats, total: int) -> float:
    """The standard error of the mean of all `total` values, estimated from some of them."""
    unmeasured = max(0.0, 1 - len(values) / max(total, 1))
    return float(values.std()) * math.sqrt(unmeasured / max(len(values) - 1, 1))


def _encoded(schema: SampleSchema, values: Sequence[tuple[TreeSpec, list[Any]]]) -> dict[str, EncodedRows]:
    return {name: compressed(schema.store_fields[name], rows, 1) for name, rows in block_of(schema, values).items()}


def _record_bytes(fields: Fields, block: dict[str, EncodedRows]) -> Floats:
    """Bytes of each record, float64 [n], without the header of its batch."""
    count = next(iter(block.values())).count
    sizes = np.zeros(count)
    for rows in block.values():
        sizes += 0 if rows.offsets is None else np.diff(rows.offsets)
    rest = batch_size(fields, block) - header_size(fields) - float(sizes.sum())
    return sizes + rest / count


def _read(schema: SampleSchema, block: dict[str, EncodedRows], folder: Path) -> tuple[list[float], float]:
    """CPU seconds to read a record, of three measurements, and to write an encoded one."""
    count = next(iter(block.values())).count
    with RecordStore.create(folder, schema.store_fields, writer_threads=1) as store:
        began = time.process_time()
        store._commit_rows(block)
        wrote = time.process_time() - began
        order = np.random.default_rng(0).permutation(count)
        batches = [order[at : at + _ROWS] for at in range(0, count, _ROWS)]
        for rows in batches:  # the first read also verifies checksums
            schema.decode(store.gather(rows, schema.names))
        spent = []
        for _ in range(3):
            np.ones(_CACHES, np.uint8)  # an epoch reads other samples in between, so none is in the CPU's caches
            began = time.process_time()
            for rows in batches:
                schema.decode(store.gather(rows, schema.names))
            spent.append((time.process_time() - began) / count)
    shutil.rmtree(folder)  # the scratch tier has space for one store
    return spent, wrote / count


def _means(values: np.ndarray[Any, Any], buckets: np.ndarray[Any, Any], count: int) -> tuple[float, ...]:
    overall = float(values.mean()) if len(values) else 0.0
    return tuple(
        float(values[buckets == bucket].mean()) if (buckets == bucket).any() else overall for bucket in range(count)
    )
