"""FunctionCache: looks a call up by the identity of its function and arguments, and computes what is missing."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import xxhash

from warmstore.errors import UnsupportedType
from warmstore.features.keyed.cache_quota import check_bound
from warmstore.features.keyed.usage_counters import Usage, UsageCounters
from warmstore.functions.call_identity import CallIdentity
from warmstore.functions.parameters import Argument, Parameters, name_of
from warmstore.functions.result_bytes import decoded, encoded
from warmstore.functions.results import ResultStore
from warmstore.functions.value_texts import text_of
from warmstore.identity.identity import Identity
from warmstore.identity.plain_data import digest_of
from warmstore.identity.random_states import random_states
from warmstore.identity.recorded_identity import RecordedIdentity
from warmstore.pipeline.tiers.unflattening import Undecodable
from warmstore.remote.location import is_remote
from warmstore.storage.files import Files
from warmstore.storage.history import History, Pace
from warmstore.storage.humanize import format_duration, format_size, parse_size
from warmstore.storage.lifecycle import Closeable
from warmstore.storage.user_paths import user_path

_log = logging.getLogger("warmstore")

_LONGEST = 200  # characters of a folder's name


@dataclass(frozen=True)
class FunctionStats:
    """Figures of a cached function. Hits, misses and seconds are of this process.

    entries: results on the disk, of all versions of the code. pending: results that are not on the disk yet. refused:
    results that were computed and not kept. damaged: results that did not match their checksums. bytes: on the disk.
    computed_seconds: spent in the function. seconds_saved: hits times the mean seconds of computed calls of all runs.
    """

    entries: int
    pending: int
    hits: int
    misses: int
    refused: int
    damaged: int
    bytes: int
    computed_seconds: float
    seconds_saved: float

    @property
    def hit_rate(self) -> float:
        """Hits among the calls, 0 to 1."""
        return self.hits / max(self.hits + self.misses, 1)

    def __str__(self) -> str:
        seconds = f"{format_duration(self.computed_seconds)} computed, {format_duration(self.seconds_saved)} saved"
        return (
            f"{self.hits:,} hits, {self.misses:,} misses ({self.hit_rate:.1%}); {self.entries + self.pending:,} "
            f"results of {format_size(self.bytes)}; {seconds}"
        )


class FunctionCache(Closeable):
    """The results of one function: `function.cache`. Safe to use from several threads and processes.

    Files are opened by the first call, and again by the first call after `close`.
    """

    _results: ResultStore | None = None

    def __init__(
        self,
        function: Callable[..., Any],
        folder: str | os.PathLike[str],
        version: str | None = None,
        ignore: Collection[str] = (),
        *,
        max_size: int | str | None = None,
        allow_pickle: bool = False,
        files: Files | None = None,
    ) -> None:
        if is_remote(os.fspath(folder)):
            raise ValueError(f"results of functions are kept in a folder, and {os.fspath(folder)!r} is a remote")
        if max_size is not None:
            check_bound(max_size)
        ignored = frozenset([ignore] if isinstance(ignore, str) else ignore)
        self.name = name_of(function)
        self._function = function
        self._version = version
        self._parameters = Parameters(function, ignored)
        self._identity = CallIdentity(function, self.name, version, ignored)
        self._allow_pickle = allow_pickle
        self._folder = user_path(folder)
        self._max_size = None if max_size is None else parse_size(max_size)
        self._files = files or Files()
        self._usage = UsageCounters(self.path / "cost.json")
        self._history = History(self.path, "functions", limit=self._max_size)
        self._pace = Pace()
        self._recorded = Usage()
        self._refused = self._bytes_read = 0
        self._warned: set[str] = set()

    def __repr__(self) -> str:
        return f"FunctionCache({self.name!r}, {str(self.path)!r})"

    @property
    def path(self) -> Path:
        """The folder of this function's results."""
        name = quote(self.name, safe="")
        if len(name) > _LONGEST:
            name = f"{name[: _LONGEST - 33]}.{digest_of(name)}"
        return self._folder / name

    # Calls

    def _get(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of a call: the kept one, or a new one, which is kept."""
        arguments = self._bind(args, kwargs)
        if arguments is None:
            return self._function(*args, **kwargs)  # raises TypeError
        key, recorded, identity = self._key(arguments)
        found, value = self._find(key)
        return value if found else self._compute(arguments, args, kwargs, key, recorded, identity)

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Compute a call even if its result is kept, and keep the new result instead."""
        arguments = self._bind(args, kwargs)
        if arguments is None:
            return self._function(*args, **kwargs)
        return self._compute(arguments, args, kwargs, *self._key(arguments))

    def check_call_in_cache(self, *args: Any, **kwargs: Any) -> bool:
        """Whether the result of a call is kept. Computes nothing. Raises TypeError for a call that does not fit the
        function."""
        arguments = self._bind(args, kwargs)
        if arguments is None:
            self._parameters.check(args, kwargs)
        return arguments is not None and self._open().holds(self._key(arguments)[0])

    def _bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Argument] | None:
        parameters = self._parameters = self._parameters.renewed()
        return parameters.bind(args, kwargs)

    def _key(self, arguments: list[Argument]) -> tuple[bytes, RecordedIdentity, Identity]:
        objects: dict[str, Any] = {}
        parts = [f"{place}={text_of(place, value, objects)}" for place, value in arguments]
        recorded = self._identity.recorded(objects)
        identity = recorded.refresh(exactly=True, arrays=bool(objects))
        self._identity.check(recorded, identity)
        lengths = " ".join([str(len(part)) for part in parts])
        whole = "\n".join([identity.digest, lengths, *parts])
        return xxhash.xxh3_128_digest(whole.encode("utf-8", "surrogatepass")), recorded, identity

    def _find(self, key: bytes) -> tuple[bool, Any]:
        data = self._open().find(key)
        if data is not None:
            try:
                value = decoded(data, allow_pickle=self._allow_pickle)
            except Undecodable:
                return False, None  # a class of the result is not imported yet, or has changed
            self._usage.add(hits=1)
            self._bytes_read += len(data)
            return True, value
        return False, None

    def _compute(
        self,
        arguments: list[Argument],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        key: bytes,
        recorded: RecordedIdentity,
        identity: Identity,
    ) -> Any:
        self._usage.add(misses=1)
        states = random_states()
        with recorded.calling() as now:
            began = time.perf_counter()
            value = self._function(*args, **kwargs)
            seconds = time.perf_counter() - began
        self._usage.add(seconds, 1)
        reason = ""
        if now is not identity and now.digest != identity.digest:
            reason = "something that it reads changed before it was called"
        elif recorded.identity.digest != now.digest:
            reason = "something that it reads changed while it ran, perhaps by another thread"
        elif random_states() != states:
            reason = "the state of a random generator changed while it ran, which a hit would not do"
        elif self._key(arguments)[0] != key:
            reason = "an argument, or a file that one names, changed while it ran, which a hit would not do"
        if reason:
            self._refuse(reason)
            return value
        try:
            data = encoded(value, allow_pickle=self._allow_pickle)
        except UnsupportedType as error:
            raise UnsupportedType(f"the result of {self.name} cannot be kept: {error}") from None
        if not self._open().put(key, data, seconds):
            self._refused += 1
        return value

    def _refuse(self, reason: str) -> None:
        self._refused += 1
        if reason not in self._warned:
            self._warned.add(reason)
            _log.warning("a result of %s is not kept: %s", self.name, reason)

    def _open(self) -> ResultStore:
        results = self._results
        if results is None:
            results = self._results = ResultStore(self._folder, self.path.name, self.name, self._max_size, self._files)
            self.closed = False
            self._register()
        return results

    # The kept results

    def stats(self) -> FunctionStats:
        """Figures of the results and of their use by this process."""
        results = self._open()
        here, seconds_saved, _ = self._usage_now()
        return FunctionStats(
            entries=results.entries,
            pending=results.pending,
            hits=here.hits,
            misses=here.misses,
            refused=self._refused,
            damaged=results.damaged,
            bytes=results.nbytes,
            computed_seconds=here.seconds,
            seconds_saved=seconds_saved,
        )

    def _usage_now(self) -> tuple[Usage, float, int]:
        """The use by this process, the seconds that hits saved, and the bytes that they read."""
        here = self._usage.here
        return here, here.hits * self._usage.in_all().per_sample, self._bytes_read

    def clear(self) -> None:
        """Remove all results of the function, those of earlier code too.

        Other processes that have read a result before may return it until they look for a missing one.

        Raises:
            ReadOnly: the folder cannot be written.
        """
        self._open().clear()

    def flush(self) -> None:
        """Write pending results to the disk, where other processes find them.

        Raises:
            WriteFailed: the disk refused; they are still pending.
        """
        if self._results is not None:
            self._results.flush()
            if self._pace.may_end():
                self._record(self._results)

    def close(self) -> None:
        """Write pending results and release the files. The next call opens them again."""
        if self._results is not None:
            results, self._results = self._results, None
            try:
                results.flush()
                self._record(results)
                results.close()
            except BaseException:
                self._results = results
                raise
            self._usage.save()
        self.closed = True
        self._unregister()

    def _record(self, results: ResultStore) -> None:
        """Append the use since the last record to the history beside the results."""
        here = self._usage.here
        use = here - self._recorded
        if use == Usage() or not results.entries:
            return
        self._recorded = here
        self._pace.wrote()
        self._history.append(
            "use",
            hits=use.hits or None,
            misses=use.misses or None,
            computed=use.samples or None,
            computed_seconds=use.seconds or None,
            saved_seconds=use.hits * self._usage.in_all().per_sample or None,
            entries=results.entries,
            bytes=results.nbytes,
            evicted_files=results.evicted_files or None,
            evicted_bytes=results.evicted_bytes or None,
        )
        results.evicted_files = results.evicted_bytes = 0

    @property
    def _has_pending(self) -> bool:
        return self._results is not None and self._results.pending > 0

    @property
    def _flushes_at_sigterm(self) -> bool:
        return True

    def _after_fork(self) -> None:
        self._usage.after_fork()
        self._recorded = Usage()
        self._refused = self._bytes_read = 0
        if self._results is not None:
            self._results.after_fork()

    def __identity__(self) -> Any:
        return self._function, self._version

    def __reduce__(self) -> Any:
        raise TypeError(f"the cache of {self.name} cannot be pickled; pickle the function, which is found by its name")
