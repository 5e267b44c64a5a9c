"""A simulated fleet: the segment log of warmstore with thousands of hosts over one object store.

    python -m benchmarks.fleet --hosts 10 100 1000

The code of the log is the real one. The object store is a dict in this process with the habits of a real one: latency,
a limit of requests per second that answers 503, listings that show an object late, and requests that fail. Time is
virtual: the event loop jumps to the next timer. One JSON line is printed for each number of hosts.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeVar

from warmstore.errors import RemoteUnavailable
from warmstore.remote import segment_log
from warmstore.remote.mirror import Mirror
from warmstore.remote.objects import Entry
from warmstore.remote.segment_bundles import Bundle, Segment
from warmstore.remote.segment_log import SegmentLog
from warmstore.remote.segment_names import Checksums

T = TypeVar("T")

_LISTED = 350  # bytes of a listing for each object, besides its name, as S3 answers
_PAGE = 1000
_RETRIES = 8


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps to the next timer when nothing else is to be done."""

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0

    def time(self) -> float:
        return self._now

    def _run_once(self) -> None:
        if not self._ready and self._scheduled:  # type: ignore[attr-defined]
            self._now = max(self._now, self._scheduled[0]._when)  # type: ignore[attr-defined]
        super()._run_once()  # type: ignore[misc]


@dataclass(frozen=True)
class Habits:
    """Of the object store: seconds of a request, of listings behind writes; requests a second; share that fails."""

    latency: float = 0.03
    lag: float = 0.0
    rate: float = 5000.0
    failures: float = 0.0


@dataclass
class ObjectStore:
    """The objects, and when each is in listings."""

    habits: Habits
    objects: dict[str, tuple[bytes, float]] = field(default_factory=dict)
    _free: float = 0.0  # when the store answers the next request

    def admit(self) -> bool:
        """Whether a request is answered, and not refused by 503."""
        now = asyncio.get_running_loop().time()
        if self._free - now > 1.0:
            return False
        self._free = max(self._free, now) + 1 / self.habits.rate
        return True


@dataclass
class Client:
    """The requests of one host, counted. It has the methods that a `SegmentLog` calls."""

    store: ObjectStore
    counts: Counter[str] = field(default_factory=Counter)

    async def _request(self, kind: str, size: int) -> None:
        for attempt in range(_RETRIES):
            self.counts[kind] += 1
            await asyncio.sleep(self.store.habits.latency * random.lognormvariate(0, 0.5))
            if self.store.admit() and random.random() >= self.store.habits.failures:
                self.counts["sent" if kind == "put" else "received"] += size
                return
            self.counts["refused"] += 1
            await asyncio.sleep(0.1 * 2**attempt * random.random())
        raise RemoteUnavailable("the store does not answer")

    async def get_async(self, name: str, /, *, most: int | None = None, flowed: Any = None) -> bytes | None:
        data, _ = self.store.objects.get(name, (None, 0.0))
        await self._request("get", len(data or b""))
        return data

    async def put_async(self, name: str, data: bytes, /) -> bool:
        await self._request("put", len(data))
        shown = asyncio.get_running_loop().time() + self.store.habits.lag * random.random()
        self.store.objects.setdefault(name, (data, shown))
        return True

    async def entries_async(self, prefix: str, /, *, flowed: Any = None) -> list[Entry]:
        now = asyncio.get_running_loop().time()
        found = [
            Entry(name, len(data), shown)
            for name, (data, shown) in self.store.objects.items()
            if name.startswith(f"{prefix}/") and shown <= now
        ]
        for _ in range(max(1, -(-len(found) // _PAGE))):
            await self._request("list", 0)
        self.counts["received"] += sum(_LISTED + len(entry.name) for entry in found)
        return sorted(found, key=lambda entry: entry.name)

    async def delete_async(self, names: Iterable[str], /) -> None:
        listed = list(names)
        await self._request("delete", 0)
        for name in listed:
            self.store.objects.pop(name, None)

    async def each(self, function: Callable[[Any], Coroutine[Any, Any, T]], items: Iterable[Any], /) -> list[T]:
        return list(await asyncio.gather(*map(function, items)))

    @property
    def requests(self) -> int:
        return sum(self.counts[kind] for kind in ("get", "put", "list", "delete"))


@dataclass
class Host:
    """One host: it appends `batches` payloads at random moments of a minute each, and reads before each."""

    number: int
    client: Client
    appended: int = 0

    async def work(self, batches: int, window: float) -> None:
        log = SegmentLog("heads", Checksums(), Mirror(None))
        for batch in range(batches):
            await asyncio.sleep(random.random() * window)
            payload = f"{self.number} {batch} ".encode() + random.randbytes(150).hex().encode()
            state = await log.read(self.client)
            await log.append(self.client, payload, state)
            self.appended += 1


async def simulate(hosts: int, batches: int, window: float, habits: Habits) -> dict[str, Any]:
    """One fleet: all hosts append, and then one that was idle and new ones read."""
    store = ObjectStore(habits)
    loop = asyncio.get_running_loop()
    fleet = [Host(number, Client(store)) for number in range(hosts)]
    done = await asyncio.gather(*(host.work(batches, window) for host in fleet), return_exceptions=True)
    failed = sum(isinstance(error, RemoteUnavailable) for error in done)
    assert all(error is None or isinstance(error, RemoteUnavailable) for error in done), done
    appended, ended = sum(host.appended for host in fleet), loop.time()
    reader, fresh = SegmentLog("heads", Checksums(), Mirror(None)), Client(store)
    began = loop.time()
    while len((await reader.read(fresh)).segments) < appended:
        await asyncio.sleep(0.1)
        assert loop.time() < ended + 60, "a segment was lost"
    first, idle = Counter(fresh.counts), Client(store)
    await reader.read(idle)
    requests = [host.client.requests for host in fleet]
    live = sum(len(data) for name, (data, _) in store.objects.items())
    return {
        "hosts": hosts,
        "appended": appended,
        "failed": failed,
        "requests_per_append": round(sum(requests) / max(appended, 1), 2),
        "requests_of_the_busiest": max(requests),
        "median_requests": statistics.median(requests),
        "sent_per_append": sum(host.client.counts["sent"] for host in fleet) // max(appended, 1),
        "received_per_host": sum(host.client.counts["received"] for host in fleet) // hosts,
        "refused": sum(host.client.counts["refused"] for host in fleet),
        "stored_per_append": live // max(appended, 1),
        "first_reading": {
            "requests": fresh.requests,
            "bytes": first["received"],
            "seconds": round(loop.time() - began, 2),
        },
        "idle_reading": {"requests": idle.requests, "bytes": idle.counts["received"]},
        "objects": len(store.objects),
    }


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--hosts", type=int, nargs="+", default=[10, 100, 1000])
    arguments.add_argument("--batches", type=int, default=2, help="segments of each host")
    arguments.add_argument("--window", type=float, default=60.0, help="seconds within which each host appends once")
    arguments.add_argument("--latency", type=float, default=0.03)
    arguments.add_argument("--lag", type=float, default=0.0, help="most seconds that a listing is behind")
    arguments.add_argument("--rate", type=float, default=5000.0, help="requests a second, above which some get 503")
    arguments.add_argument("--failures", type=float, default=0.0, help="share of requests that fail")
    arguments.add_argument("--seed", type=int, default=0)
    given = arguments.parse_args()
    # Content that thousands of hosts read is parsed once: the simulation has one processor for all of them.
    Bundle.parse = cache(Bundle.parse)  # type: ignore[method-assign]
    Segment.parse = cache(Segment.parse)  # type: ignore[method-assign]
    segment_log.hash_of = cache(segment_log.hash_of)
    habits = Habits(given.latency, given.lag, given.rate, given.failures)
    for hosts in given.hosts:
        random.seed(given.seed)
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            found = runner.run(simulate(hosts, given.batches, given.window, habits))
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
