"""What child processes of the loader's tests run."""

import gc
import multiprocessing
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from torch.utils.data import DataLoader

import warmstore as ws


def leftovers() -> list[str]:
    """Threads, children and shared memory of this process, beyond what Python itself keeps."""
    # Queues to a worker of torch that was killed keep their own thread a while.
    own = {"MainThread", "QueueFeederThread"}
    threads = [thread.name for thread in threading.enumerate() if thread.name not in own]
    maps = Path("/proc/self/maps")
    lines = maps.read_text().splitlines() if maps.exists() else []
    return [*threads, *children(), *(line for line in lines if "/dev/shm" in line and "(deleted)" not in line)]


def children() -> list[str]:
    """Child processes; the resource tracker, which multiprocessing keeps, is none."""
    lines = (" ".join(child.cmdline()) for child in psutil.Process().children(recursive=True))
    return [line for line in lines if "resource_tracker" not in line]


def interrupted(path: str, workers: int, processes: int = 0) -> None:
    """Train until Ctrl-C, which comes in the middle of an epoch, and say what is left."""
    store = ws.RecordStore.open(path)
    loader = ws.Loader(
        store, 2, ws.Shuffle(seed=0), transform=lambda batch: batch, workers=workers, processes=processes, to="torch"
    )
    try:
        for step, _ in enumerate(loader.stream()):
            if step == 3:
                print("ready", flush=True)
            while step > 3:
                time.sleep(0.01)  # and no pause: a signal that comes just before one would not end it
    except KeyboardInterrupt:
        place = loader.state_dict()["place"]
        if processes:  # they wait for the next epoch
            loader.close()
        print("left", leftovers(), place, flush=True)


def abandoned(path: str, workers: int) -> None:
    """Leave a loader in the middle and reach the end of the program."""
    loader = ws.Loader(path, 2, transform=lambda batch: batch, workers=workers)
    batches = iter(loader)
    next(batches)
    globals()["_kept"] = loader, batches
    print("end", flush=True)


def unread(path: str, workers: int) -> None:
    """Leave more in the workers' queues than a pipe holds, and wait for the end."""
    torch.utils.data._utils.worker.MP_STATUS_CHECK_INTERVAL = 0.2  # seconds; else workers look every five
    loader = ws.Loader([{"text": "x" * 100_000}] * 100, 2, processes=workers)
    batches = iter(loader)
    next(batches)
    time.sleep(1)  # until the pipe is full
    print(*(child.pid for child in psutil.Process().children()), flush=True)
    threading.Event().wait()


class Killing:
    """A data set whose reader dies at one position.

    torch raises the worker's death in a signal handler. In the middle of a queue's `put` that would leave the queue's
    lock locked, and its end would wait for ever; so the reader dies when the program has sent what it sends.

    is_sent: a multiprocessing event that the program sets then.
    """

    def __init__(self, store: ws.RecordStore) -> None:
        self.store = store
        self.is_sent = multiprocessing.Event()

    def __len__(self) -> int:
        return len(self.store)

    def __getitems__(self, positions: Any) -> Any:
        if 0 in positions:  # of the first batch: the memory of later ones would die with their worker
            self.is_sent.wait()
            os.kill(os.getpid(), signal.SIGKILL)
        return self.store.__getitems__(positions)


def killed(path: str, workers: int) -> None:
    """Read through torch's DataLoader, a worker of which is killed, and say what is left."""
    store = ws.RecordStore.open(path)
    sampler = ws.BatchSampler(len(store), 2)
    samples = Killing(store)
    loader = DataLoader(samples, batch_sampler=sampler, collate_fn=ws.collate, num_workers=workers)  # type: ignore[arg-type]
    try:
        batches = iter(loader)
        samples.is_sent.set()
        list(batches)
    except (RuntimeError, ConnectionResetError) as error:
        print(error)
    del loader, batches
    gc.collect()
    print("left", leftovers(), store["number"][9], flush=True)


def rank(path: str, folder: str) -> None:
    """One rank under torchrun: an epoch and a half, and the state in the middle."""
    import json

    import torch.distributed as distributed

    distributed.init_process_group("gloo")
    loader = ws.Loader(path, 3, ws.Shuffle(seed=4), fields=["number"], to="torch", workers=1)
    first = [batch["number"][batch["valid"]].tolist() for batch in loader]
    batches = iter(loader)
    next(batches)
    said = {"first": first, "second": next(batches)["number"].tolist(), "state": loader.state_dict()}
    name = f"{distributed.get_rank()}-of-{distributed.get_world_size()}.json"
    (Path(folder) / name).write_text(json.dumps(said))
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    what, *arguments = sys.argv[1:]
    np.seterr(all="raise")
    if what == "rank":
        rank(*arguments)
    else:
        parts: dict[str, Any] = {"interrupted": interrupted, "abandoned": abandoned, "unread": unread, "killed": killed}
        parts[what](arguments[0], *map(int, arguments[1:]))
