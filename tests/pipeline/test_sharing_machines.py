"""Machines are processes with folders, checkouts and data of their own, and share samples through a real server."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests import warm
from tests.pipeline.making import watched
from tests.remote.conftest import nginx, s3_proxy, s3_server
from tests.remote.proxy import FAULTS, Proxy
from tests.remote.servers import BUCKET, S3, Nginx, s3_variables

import warmstore as ws
from warmstore.storage.disk_usage import folder_bytes
from warmstore.storage.lease import lock_path

pytest.importorskip("obstore", reason="obstore is not installed: pip install 'warmstore[dev]'")

__all__ = ["nginx", "s3_proxy", "s3_server"]

COUNT = 300
PROGRAM = """
import hashlib
import json
import sys
from pathlib import Path

import numpy as np
from tests.pipeline.making import plan_of

import warmstore as ws
from warmstore.errors import Damaged, RemoteUnavailable

calls = [0]


def read(path):
    calls[0] += 1
    return Path(path).read_bytes()


def decode(data, size):
    return np.random.default_rng(list(data)).integers(0, 256, size, np.uint8)


def flip(array, rng):
    return array[::-1].copy() if rng.random() < 0.5 else array


def digest(plan=None):
    with pipe.loader(plan, 8, workers=0, seed=3) as loader:
        return [hashlib.sha256(batch.tobytes()).hexdigest() for batch in loader]


here = Path(__file__).parent
files = sorted((here / "data").iterdir())
options = {"files": "content", "root": here / "data"}
first, last, disk, *commands = sys.argv[1:]
pipe = ws.Pipeline(files[int(first):int(last)], **options).step(read).step(decode, size=20_000)
pipe = pipe.step(flip, random=True)
plan = plan_of(pipe, [(2, "disk", "raw")], [len(pipe)], folder=here / "cache", disk=int(disk))
said = {}
for command in commands:
    name, _, url = command.partition("=")
    if name == "fill":
        said[name] = pipe.fill(plan, workers=0, progress=False).computed
    elif name in ("push", "pull"):
        try:
            result = getattr(pipe, name)(url, plan, progress=False)
            said[name] = [result.chunks, result.records if name == "pull" else result.present]
        except (Damaged, RemoteUnavailable) as error:
            said[name] = type(error).__name__
    elif name == "epoch":
        before = calls[0]
        cached = digest(plan)
        said[name] = calls[0] - before
        assert cached == digest(), "other batches than without a cache"
pipe.close()
print(json.dumps(said))
"""


class Machine:
    """A checkout of one program, with copies of the same data that have other times."""

    def __init__(self, folder: Path, number: int) -> None:
        self.folder = folder
        (folder / "data").mkdir(parents=True)
        (folder / "train.py").write_text(PROGRAM)
        for index in range(COUNT):
            path = folder / "data" / f"{index:04d}.bin"
            path.write_bytes(index.to_bytes(4, "little"))
            os.utime(path, (1_000_000 * number + index,) * 2)

    @property
    def tier(self) -> Path:
        return self.folder / "cache" / "warmstore-samples"

    def start(self, *commands: str, samples: tuple[int, int] = (0, COUNT), disk: int = 64 << 20) -> Any:
        root = str(Path(__file__).parents[2])
        arguments = [*map(str, samples), str(disk), *commands]
        return warm.popen(
            [sys.executable, str(self.folder / "train.py"), *arguments],
            cwd=self.folder, env={**os.environ, "PYTHONPATH": root}, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True,
        )  # fmt: skip

    def run(self, *commands: str, **options: Any) -> dict[str, Any]:
        """What each command said."""
        child = self.start(*commands, **options)
        said, error = child.communicate(timeout=300)
        assert child.returncode == 0, error
        found: dict[str, Any] = json.loads(said)
        return found


@pytest.fixture
def machines(tmp_path: Path) -> tuple[Machine, Machine]:
    return Machine(tmp_path / "one" / "project", 1), Machine(tmp_path / "two" / "elsewhere", 2)


@pytest.fixture
def url(s3_server: S3, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    for name, value in s3_server.variables.items():
        monkeypatch.setenv(name, value)
    return f"s3://{BUCKET}/samples/{request.node.name}"


def test_the_second_machine_computes_nothing(url: str, machines: tuple[Machine, Machine]) -> None:
    one, two = machines
    said = one.run("fill", f"push={url}", samples=(0, 200))
    assert said["fill"] == 200
    assert said["push"][0] >= 1
    assert two.run(f"pull={url}", "epoch", samples=(0, 200)) == {"pull": [said["push"][0], 200], "epoch": 0}
    assert two.run("fill", f"push={url}")["fill"] == 100  # and shares what it adds
    back = one.run(f"pull={url}", "epoch")
    assert back["pull"][1] == 100
    assert back["epoch"] == 0
    assert two.run(f"push={url}")["push"][0] == 0


def test_webdav(nginx: Nginx, machines: tuple[Machine, Machine]) -> None:
    one, two = machines
    one.run("fill", f"push={nginx.url}/samples")
    assert two.run(f"pull={nginx.url}/samples", "epoch")["epoch"] == 0


def test_a_changed_program_pulls_nothing(url: str, machines: tuple[Machine, Machine]) -> None:
    one, two = machines
    one.run("fill", f"push={url}")
    program = two.folder / "train.py"
    program.write_text(program.read_text().replace("integers(0, 256", "integers(1, 256"))
    assert two.run(f"pull={url}", "epoch") == {"pull": [0, 0], "epoch": COUNT}
    path = one.folder / "data" / "0007.bin"
    path.write_bytes(b"other")
    shutil.rmtree(one.folder / "cache")
    assert one.run(f"pull={url}", "epoch")["epoch"] == 1


@pytest.mark.slow
def test_two_processes_pull_at_once(url: str, machines: tuple[Machine, Machine]) -> None:
    """As two ranks of one machine do. Each chunk comes once."""
    one, two = machines
    disk = 8 << 20
    one.run("fill", f"push={url}", disk=disk)
    pulls = [two.start(f"pull={url}", disk=disk) for _ in range(2)]
    with watched(two.tier.parent) as most:
        said = [child.communicate(timeout=300) for child in pulls]
    assert [child.returncode for child in pulls] == [0, 0], said
    assert sum(json.loads(out)["pull"][0] for out, _ in said) >= 5
    assert most() <= disk
    (store,) = (path.parent for path in two.tier.glob("*/alike/store.json"))
    with ws.RecordStore.open(store) as opened:
        assert len(opened) == COUNT
        assert opened.verify(progress=False).ok
    assert two.run("epoch", disk=disk)["epoch"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("disk", [4 << 20, 16 << 20])
def test_a_pull_beside_a_process_that_fills(disk: int, url: str, machines: tuple[Machine, Machine]) -> None:
    one, two = machines
    one.run("fill", f"push={url}", disk=8 << 20)
    with watched(two.tier.parent) as most:
        both = [two.start("epoch", "epoch", disk=disk), two.start(f"pull={url}", "epoch", disk=disk)]
        said = [child.communicate(timeout=300) for child in both]
    assert [child.returncode for child in both] == [0, 0], said
    assert most() <= disk
    assert (two.run("epoch", disk=disk)["epoch"] == 0) == (disk > 8 << 20)


@pytest.mark.slow
@pytest.mark.parametrize("request_number", range(8, 20))
def test_a_killed_pull_goes_on(
    request_number: int, url: str, s3_proxy: Proxy, machines: tuple[Machine, Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = machines
    disk = 8 << 20  # chunks of 1 MB
    one.run("fill", f"push={url}", disk=disk)
    for name, value in s3_variables(s3_proxy.url).items():
        monkeypatch.setenv(name, value)
    child = two.start(f"pull={url}", disk=disk)
    s3_proxy.before = lambda number, request: child.kill() if number == request_number else None
    child.communicate()
    s3_proxy.before = None
    assert child.returncode == -9
    assert not two.tier.exists() or folder_bytes(two.tier) <= disk
    two.run("epoch", disk=disk)  # whatever came, it is right
    shutil.rmtree(two.folder / "cache")
    child = two.start(f"pull={url}", disk=disk)
    s3_proxy.reset()
    s3_proxy.before = lambda number, request: child.kill() if number == request_number else None
    child.communicate()
    s3_proxy.before = None
    assert two.run(f"pull={url}", "epoch", disk=disk)["epoch"] == 0
    assert not list(two.tier.rglob(".pull"))


@pytest.mark.slow
def test_what_a_killed_pull_left_makes_room(
    url: str, s3_proxy: Proxy, machines: tuple[Machine, Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = machines
    one.run("fill", f"push={url}", samples=(0, 200), disk=8 << 20)
    for name, value in s3_variables(s3_proxy.url).items():
        monkeypatch.setenv(name, value)
    child = two.start(f"pull={url}", samples=(0, 200), disk=8 << 20)

    def kill(number: int, request: Any) -> None:
        if list(two.tier.rglob(".pull")) and child.poll() is None:
            child.kill()

    s3_proxy.before = kill
    child.communicate()
    s3_proxy.before = None
    (staging,) = two.tier.rglob(".pull")
    assert lock_path(staging).exists()
    left = folder_bytes(staging)
    assert left > 500_000
    needed = folder_bytes(one.tier) + 300_000  # less than there is with what was left
    two.run("epoch", samples=(0, 200), disk=needed)
    assert not staging.exists()
    assert two.run("epoch", samples=(0, 200), disk=needed)["epoch"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_faults_of_the_network(
    fault: str, url: str, s3_proxy: Proxy, machines: tuple[Machine, Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Right samples or an error, and the next pull gets the rest."""
    one, two = machines
    one.run("fill", f"push={url}", disk=8 << 20)
    for name, value in s3_variables(s3_proxy.url).items():
        monkeypatch.setenv(name, value)
    for number in (9, 18):
        s3_proxy.reset(dict.fromkeys(range(number, number + 3), fault))
        two.run(f"pull={url}", disk=8 << 20)
        s3_proxy.reset()
        two.run("epoch", disk=8 << 20)
        shutil.rmtree(two.folder / "cache")
    s3_proxy.reset(dict.fromkeys(range(12, 15), fault))
    two.run(f"pull={url}", disk=8 << 20)
    s3_proxy.reset()
    assert two.run(f"pull={url}", "epoch", disk=8 << 20)["epoch"] == 0
