"""F8, F9, F12: many processes, killed at any moment. Each test is a script of its own."""

import tempfile
from pathlib import Path

import pytest
from tests.slow import either, thinned

COMMON = """
import multiprocessing, os, random, signal, sys, threading, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # forks with threads about are what this is for
import torch
from torch import nn
import warmstore as ws
torch.set_num_threads(1)
folder = sys.argv[1] + "/cache"

class Double(nn.Module):
    rows = 0
    def forward(self, x):
        Double.rows += len(x)
        return {"y": x * 2, "name": [f"n{v:g}" for v in x[:, 0]]}

def data(ids):
    return torch.tensor([[float(i), i / 7] for i in ids])

def open_module(**options):
    return ws.CachedModule(Double(), ws.FeatureCache(folder, "id", lists="per_sample", **options))

def check(out, ids):
    x = data(ids)
    assert torch.equal(out["y"], x * 2), (out["y"], x)
    assert out["name"] == [f"n{v:g}" for v in x[:, 0]], out["name"]

def call(module, ids):
    check(module(data(ids), cache_ids=ids), ids)
"""

ENDS = {
    "end of the script": "",
    "sys.exit": "sys.exit(0)",
    "exception": "raise ZeroDivisionError",
    "keyboard": "raise KeyboardInterrupt",
    "del": "del module",
}


@pytest.mark.parametrize("end", thinned(5, ENDS))
def test_rows_pending_at_exit(run_script, end):
    status = {"exception": 1, "keyboard": -2}.get(end, 0)
    run_script(COMMON + f"module = open_module()\ncall(module, range(5))\n{ENDS[end]}\n", status=status, fresh=True)
    run_script(COMMON + "module = open_module()\ncall(module, range(5))\nassert Double.rows == 0\n")


CHILDREN = """
def inherited(module, ids):
    call(module, ids)

def opened(module, ids):
    call(open_module(), ids)

def raw_fork(module, ids):
    if os.fork() == 0:
        call(module, ids)
        sys.exit(0)
    assert os.wait()[1] == 0

def in_process(method, target, module, ids):
    process = multiprocessing.get_context(method).Process(target=target, args=(module, ids))
    process.start()
    process.join()
    assert process.exitcode == 0, process.exitcode

if __name__ == "__main__":
    for stored in range(ROUNDS):
        base = 1000 * stored
        module = open_module()
        call(module, range(base, base + 3))  # waits in the parent while the children come and go
        raw_fork(module, range(base + 10, base + 13))
        in_process("fork", inherited, module, range(base + 20, base + 23))
        in_process("fork", opened, None, range(base + 30, base + 33))
        in_process("spawn", inherited, module, range(base + 40, base + 43))
        module.cache.close()
        module = open_module()
        before = Double.rows
        for first in (0, 10, 20, 30, 40):
            call(module, range(base + first, base + first + 3))
        assert Double.rows == before, (Double.rows, before)
        assert len(module.cache) == 15 * (1 + stored), len(module.cache)
        module.cache.close()
"""


def test_children_keep_what_they_computed(run_script):
    """Forked or spawned, with a cache of their own or the parent's: pending rows are written when they return."""
    run_script(f"ROUNDS = {either(1, 2)}\n" + COMMON + CHILDREN)


LIVE = """
def reader(pipe):
    module = open_module()
    while (ids := pipe.recv()) is not None:
        call(module, ids)
        pipe.send(Double.rows)

if __name__ == "__main__":
    module = open_module()
    pipes = []
    for method in ("spawn", "fork"):
        ours, theirs = multiprocessing.get_context(method).Pipe()
        process = multiprocessing.get_context(method).Process(target=reader, args=(theirs,))
        process.start()
        pipes.append((ours, process))
    for first in range(0, 50, 5):
        ids = range(first, first + 5)
        call(module, ids)
        module.cache.flush()
        for pipe, _ in pipes:
            pipe.send(ids)
            assert pipe.recv() == 0  # found at once, not computed again
    pipes[0][0].send(range(100, 103))
    assert pipes[0][0].recv() == 3
    for pipe, process in pipes:
        pipe.send(None)
        process.join()
        assert process.exitcode == 0
    before = Double.rows
    call(module, range(100, 103))  # the reader wrote them as it ended
    assert Double.rows == before
"""


def test_one_computes_and_others_read_live(run_script):
    run_script(COMMON + LIVE)


RANKS = """
def rank(number, world, barrier, totals):
    module = open_module(flush_every=16)
    for epoch in range(3):
        ids = list(range(200))
        random.Random(epoch).shuffle(ids)
        mine = ids[number::world]
        for at in range(0, len(mine), 10):
            call(module, mine[at : at + 10])
        module.cache.flush()
        barrier.wait()
    totals[number] = Double.rows

if __name__ == "__main__":
    context = multiprocessing.get_context("fork")
    world = 4
    barrier, totals = context.Barrier(world), context.Array("i", world)
    processes = [context.Process(target=rank, args=(n, world, barrier, totals)) for n in range(world)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    assert sum(totals) == 200, list(totals)  # each sample once, by whichever rank
    module = open_module()
    call(module, range(200))
    assert Double.rows == 0
    assert len(module.cache) == 200
"""


def test_every_rank_writes_and_nothing_is_computed_twice(run_script):
    run_script(COMMON + RANKS)


KILLS = """
from warmstore.storage.files import Files

class Deadly(Files):
    def __init__(self, countdown):
        self.countdown = countdown

def deadly(name):
    def call(self, *args, **options):
        self.countdown -= 1
        if self.countdown == 0:
            if name == "write" and random.random() < 0.5:  # torn: the first part of it gets there
                descriptor, buffers, offset = args
                whole = b"".join(bytes(buffer) for buffer in buffers)
                os.pwrite(descriptor, whole[: len(whole) // 2], offset)
            os.kill(os.getpid(), signal.SIGKILL)
        return getattr(super(Deadly, self), name)(*args, **options)
    return call

for name in ("write", "sync", "create", "rename", "allocate", "truncate", "lock", "unlock", "sync_folder"):
    setattr(Deadly, name, deadly(name))

def work(pipe, seed, first, countdown):
    random.seed(seed)
    cache = ws.FeatureCache(folder, "id", lists="per_sample", flush_every=8, files=Deadly(countdown))
    module = ws.CachedModule(Double(), cache)
    for start in range(first, first + 400, 4):
        call(module, range(start, start + 4))
        if random.random() < 0.3:
            cache.flush()
            os.write(pipe, (start + 4).to_bytes(4, "little"))

def flushed(pipe, kill_after, pid):
    last, count = None, 0
    while len(got := os.read(pipe, 4)) == 4:
        last, count = int.from_bytes(got, "little"), count + 1
        if count == kill_after:
            os.kill(pid, signal.SIGKILL)
    return last

if __name__ == "__main__":
    context = multiprocessing.get_context("fork")
    promised, kills = [], 0
    for seed in range(SEEDS):
        random.seed(seed)
        # Half die inside of an operation of their own, half from outside, whatever they are doing then.
        countdown, kill_after = (random.randint(1, 90), -1) if seed % 2 else (-1, random.randint(1, 6))
        reading, writing = os.pipe()
        process = context.Process(target=work, args=(writing, seed, 1000 * seed, countdown))
        process.start()
        os.close(writing)
        last = flushed(reading, kill_after, process.pid)
        os.close(reading)
        process.join()
        kills += process.exitcode == -signal.SIGKILL
        if last is not None:
            promised += range(1000 * seed, last)
        module = open_module()
        values, missing = module.cache.get_batch(promised)
        assert len(missing) == 0, (seed, [promised[at] for at in missing])
        if promised:
            check(values, promised)
        call(module, range(1000 * seed, 1000 * seed + 50))  # what was not flushed is right or a miss
        assert module.cache.stats().damaged == 0
        module.cache.close()
    print(kills, len(promised))
"""


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [10, 36])
def test_killed_at_any_moment(run_script, seeds):
    """Everything flushed is a hit, and nothing is wrong, after each of many SIGKILLs."""
    kills, promised = map(int, run_script(COMMON + KILLS.replace("SEEDS", str(seeds))).split())
    assert kills >= seeds // 2
    assert promised > 30


LOADER = """
class Features(torch.utils.data.Dataset):
    def __init__(self, module):
        self.module = module
    def __len__(self):
        return 40
    def __getitem__(self, i):
        return i, self.module(data([i]), cache_ids=[i])["y"][0]

if __name__ == "__main__":
    for run, method in enumerate(["fork", SECOND]):
        module = open_module()
        call(module, range(4))  # waiting, or hits in the second run
        loader = torch.utils.data.DataLoader(
            Features(module), batch_size=4, num_workers=2, multiprocessing_context=method)
        for epoch in range(2 - run):
            for ids, y in loader:
                assert torch.equal(y, data(ids.tolist()) * 2)
        module.cache.close()
        module = open_module(read_only=True)
        assert module.cache.get_batch(range(40))[1].tolist() == []
        if run:
            assert len(module.cache) == entries  # the workers of the second run found all
        entries = len(module.cache)
"""


@pytest.mark.parametrize("second", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_data_loader_workers(run_script, second):
    run_script(COMMON + LOADER.replace("SECOND", repr(second)))


WORKERS = """
from torch.utils.data import DataLoader, Dataset, get_worker_info

class Samples(Dataset):
    def __len__(self):
        return 40
    def __getitem__(self, i):
        return i

class Collate:
    def __init__(self, module):
        self.module = module
    def __call__(self, ids):
        assert get_worker_info() is not None
        before = Double.rows
        out = self.module(data(ids), cache_ids=ids)
        check(out, ids)
        return torch.tensor(ids), out["y"], Double.rows - before

if __name__ == "__main__":
    module = open_module(flush_every=4)
    call(module, range(4))
    for epoch in range(2):
        computed = 0
        loader = DataLoader(Samples(), 8, shuffle=True, num_workers=2, collate_fn=Collate(module),
                            multiprocessing_context=METHOD)
        for ids, y, rows in loader:
            assert torch.equal(y, data(ids.tolist()) * 2)
            computed += rows
        # A forked worker inherits what waits in the parent, a spawned one sees what was flushed.
        assert computed == 0 if epoch else 36 <= computed <= 40, (epoch, computed)
    before = Double.rows
    call(module, range(40))  # the parent finds what the workers wrote
    assert Double.rows == before
    module.cache.close()
    assert 40 <= len(open_module(read_only=True).cache) <= 44
"""


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_collate_function_in_workers_writes_and_reads(run_script, method):
    run_script(COMMON + WORKERS.replace("METHOD", repr(method)))


READ_ONLY = """
if __name__ == "__main__":
    module = open_module()
    call(module, range(5))
    module.cache.close()
    os.chmod(sys.argv[1], 0o755)
    for path in (folder, *(os.path.join(top, name) for top, names, files in os.walk(folder) for name in names + files)):
        os.chmod(path, 0o555 if os.path.isdir(path) else 0o444)
    if os.fork() == 0:
        if os.getuid() == 0:
            os.setuid(65534)
        try:
            open_module()
        except ws.ReadOnly as error:
            assert "read_only=True" in str(error) and isinstance(error, PermissionError)
        else:
            os._exit(3)
        module = open_module(read_only=True)
        call(module, range(8))
        assert Double.rows == 5 + 3
        module.cache.close()
        cache = ws.FeatureCache(sys.argv[1], "other")
        cache.put_batch([1], torch.ones(1))
        try:
            cache.flush()
        except ws.ReadOnly as error:
            assert "read_only=True" in str(error)
        else:
            os._exit(4)
        os._exit(0)
    assert os.wait()[1] == 0
"""


def test_folder_that_cannot_be_written(run_script):
    # Not in pytest's folder, which other users do not get to.
    with tempfile.TemporaryDirectory() as folder:
        run_script(COMMON + READ_ONLY, Path(folder))


SPAWNED = """
import dataclasses

@dataclasses.dataclass
class Out:
    y: torch.Tensor

class Wrap(nn.Module):
    def forward(self, x):
        return Out(x * 2)

def child():
    module = ws.CachedModule(Wrap(), ws.FeatureCache(folder, "out"))
    out = module(data(range(6)), cache_ids=range(6))
    assert type(out) is Out and torch.equal(out.y, data(range(6)) * 2)
    assert module.cache.stats().hits == 3

if __name__ == "__main__":
    module = ws.CachedModule(Wrap(), ws.FeatureCache(folder, "out"))
    module(data(range(3)), cache_ids=range(3))
    module.cache.flush()
    process = multiprocessing.get_context("spawn").Process(target=child)
    process.start()
    process.join()
    assert process.exitcode == 0
    assert module(data(range(6)), cache_ids=range(6)).y.shape == (6, 2)
"""


@pytest.mark.slow
def test_classes_of_the_main_module_in_spawned_processes(run_script):
    run_script(COMMON + SPAWNED)


IMPORTS = """
import time
from pathlib import Path

class Finder:
    def find_spec(self, name, path=None, target=None):
        if threading.current_thread() is not threading.main_thread():
            found.append((threading.current_thread().name, name))

found = []
sys.meta_path.insert(0, Finder())
module = open_module(flush_every=4)
call(module, range(4))  # a thread stores them
while not list(Path(folder).rglob("*.arrow")):
    time.sleep(0.01)
module.cache.close()
with ws.RecordStore.create(folder + "-records", {"x": ws.Array("float32", (2,))}) as store:
    store.extend({"x": data(range(40)).numpy()})
for options in ({}, {"to": "torch"}):
    with ws.Loader(folder + "-records", 4, workers=2, **options) as loader:
        for batch in loader:
            pass
assert not found, found
"""


@pytest.mark.slow
def test_threads_import_nothing(run_script):
    """A process that is forked while a thread imports a module waits for that import, which has no thread there."""
    run_script(COMMON + IMPORTS, fresh=True)
