"""Hosts that share a remote: each has a folder of its own. Run as a program, this file is one of them."""

import random
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.compiling.environments import HERE

from warmstore.compiling.artifact import Artifact
from warmstore.compiling.environment import Environment
from warmstore.compiling.remote.remote_artifacts import RemoteArtifacts
from warmstore.compiling.store.artifact_store import ArtifactStore
from warmstore.remote.limits import RequestLimits, StallBudget
from warmstore.remote.objects import Objects
from warmstore.remote.signing import Keyring, SigningKey

KEY = SigningKey.parse("hmac:" + "5a" * 32)
OTHER_KEY = SigningKey.parse("hmac:" + "a5" * 32)


def content(number: int) -> bytes:
    """Bytes that belong to a number."""
    return random.Random(number).randbytes(2000 + 100 * number)


class Host:
    """A store in a folder and the tier behind it. wait: seconds that it may wait for the remote; busy machines are
    slow."""

    def __init__(
        self,
        folder: Path,
        url: str | Path,
        *,
        keyring: Keyring | None = None,
        job: str = "job",
        environment: Environment = HERE,
        wait: float = 60.0,
        limits: RequestLimits | None = None,
    ) -> None:
        self.environment = environment
        self.job = job
        self.store = ArtifactStore(folder)
        objects = Objects(url, limits=limits, at_exit=False)
        keyring = Keyring((KEY,)) if keyring is None else keyring
        self.tier = RemoteArtifacts(objects, keyring, self.store, environment, job=job, budget=StallBudget(wait))
        try:
            self.tier.start()
        except BaseException:
            self.close()
            raise

    def make(self, *numbers: int) -> list[Artifact]:
        """Compile something and offer it."""
        made = [
            self.store.put(f"k/{one}", "cpp.so", content(one), environment=self.environment, job=self.job)
            for one in numbers
        ]
        for artifact in made:
            self.tier.offer(artifact)
        return made

    def has(self, number: int) -> bool:
        """Look something up as a session does: here first, then in the remote. What is found must be right."""
        found = self.find(number)
        if found is None and self.tier.fetch(f"k/{number}"):
            found = self.find(number)
        if found is None:
            return False
        assert self.store.read(found) == content(number)
        return True

    def find(self, number: int) -> Artifact | None:
        return self.store.find(f"k/{number}", None, self.environment)

    @property
    def counters(self) -> dict[str, int]:
        return dict(self.store.stats().counters)

    def close(self) -> None:
        try:
            self.tier.close()
        finally:
            self.tier.close()  # as a session does: an interrupt may have come before the first one had begun to end
            self.store.close()


@contextmanager
def host(folder: Path, url: str | Path, **options: object) -> Iterator[Host]:
    """A host that is closed, and so has published, at the end."""
    one = Host(folder, url, **options)  # type: ignore[arg-type]
    try:
        yield one
    finally:
        one.close()


@contextmanager
def threads_end(prefix: str) -> Iterator[None]:
    """The threads that begin in this context, and whose names begin so, end with it."""
    before = set(threading.enumerate())
    yield
    for thread in set(threading.enumerate()) - before:
        if thread.name.startswith(prefix):
            thread.join(20)
            assert not thread.is_alive(), thread


FILE = Path(__file__)

if __name__ == "__main__":
    with host(Path(sys.argv[1]), sys.argv[2]) as this:
        this.make(*map(int, sys.argv[3].split(",")))
