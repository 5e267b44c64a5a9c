"""What child processes of the tests run. `python -m` is not needed: each is started by its file."""

import random
import sys
from pathlib import Path

from warmstore.compiling.environment import Environment
from warmstore.compiling.store.artifact_store import ArtifactStore
from warmstore.errors import Damaged, NoArtifact, TooLarge

HERE = Environment(system="Linux", torch="2.13.0")


def content(number: int, size: int) -> bytes:
    """Bytes that belong to a number, so that whoever reads them can tell whether they are right."""
    return random.Random(number).randbytes(size)


def churn(folder: str, limit: str, seed: str, rounds: str) -> None:
    """Put and read at random, for so many rounds; 0 is until killed."""
    choice = random.Random(int(seed))
    store = ArtifactStore(folder, int(limit))
    done = 0
    while not int(rounds) or done < int(rounds):
        done += 1
        number = choice.randrange(60)
        size = 1000 + number * 5000
        found = store.find(f"k{number}", "cpp.source", HERE)
        if found is None:
            try:
                store.put(f"k{number}", "cpp.source", content(number, size), environment=HERE, job=f"j{number % 3}")
            except TooLarge as error:
                sys.exit(f"{error}")
            continue
        try:
            if store.read(found) != content(number, size):
                sys.exit(f"k{number}: wrong bytes")
        except (NoArtifact, Damaged) as error:
            if isinstance(error, Damaged):
                sys.exit(f"{error}")
        store.used([found])
    store.close()


def hits(folder: str, limit: str, seed: str, rounds: str) -> None:
    """Count uses of one artifact, and put one of one's own each time."""
    with ArtifactStore(folder, int(limit)) as store:
        for number in range(int(rounds)):
            store.used(store.all(kind="autotune"))
            store.put(f"{seed}-{number}", "cpp.source", b"x" * number, environment=HERE)
            store.record_job("job", [f"{seed}-{number}"])


def hold(folder: str, limit: str, seed: str, rounds: str) -> None:
    """Take the lock, say so, and sit on it until killed."""
    store = ArtifactStore(folder, int(limit))
    with store._index.alone():
        print("held", flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    print("ready", flush=True)
    globals()[sys.argv[1]](*sys.argv[2:])

FILE = Path(__file__)
