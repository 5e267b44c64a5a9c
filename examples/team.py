"""Two machines share what they compile: the first one compiles a model, the second one starts warm.

A local S3 server (moto, `pip install "warmstore[dev]"`) stands in for the team's bucket. Each machine is a fresh
process with a folder of its own; all they have in common are the bucket and the key that signs.

    python examples/team.py
"""

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from warmstore.remote.signing import SigningKey

MACHINE = """
import json, time
import torch
from torch import nn
import torch._inductor.compile_fx, torch._functorch._aot_autograd.autograd_cache
import warmstore as ws

torch.manual_seed(0)
model, x = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.LayerNorm(128), nn.Linear(128, 10)), torch.ones(32, 64)
began = time.perf_counter()
ws.compile_cache.init(job="team")
loss = torch.compile(model)(x).square().sum()
loss.backward()
seconds = time.perf_counter() - began
lookups = ws.compile_cache.lookups()
found = sum(one.hit for one in lookups)
print(json.dumps({"seconds": seconds, "loss": loss.item(), "found": found, "compiled": len(lookups) - found}))
"""


def main() -> int:
    with (
        tempfile.TemporaryDirectory(prefix="warmstore-team-") as folder,
        socket.create_server(("127.0.0.1", 0)) as free,
    ):
        port = free.getsockname()[1]
        free.close()
        url = f"http://127.0.0.1:{port}"
        server = subprocess.Popen(
            [sys.executable, "-m", "moto.server", "-p", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            make_bucket(url)
            bucket = {
                "AWS_ENDPOINT_URL": url,
                "AWS_ACCESS_KEY_ID": "team",
                "AWS_SECRET_ACCESS_KEY": "secret",
                "WARMSTORE_REMOTE_URL": "s3://team/warmstore",
                "WARMSTORE_SIGNING_KEY": SigningKey.new().line,
            }
            print("One model, two machines with nothing in common but a bucket. Seconds from init to the first step:\n")
            machines = [run_machine(name, Path(folder), bucket) for name in ("first", "second")]
        finally:
            server.kill()
            server.wait()
    same = machines[0]["loss"] == machines[1]["loss"]
    ratio = machines[0]["seconds"] / machines[1]["seconds"]
    print(f"\n{ratio:.0f} times faster; the loss is {'' if same else 'NOT '}the same.")
    return 0 if same and not machines[1]["compiled"] else 1


def run_machine(name: str, folder: Path, bucket: dict[str, str]) -> dict[str, float]:
    variables = {
        **os.environ,
        **bucket,
        "WARMSTORE_CACHE_DIR": str(folder / name),
        "HOME": str(folder / f"{name}-home"),
    }
    done = subprocess.run([sys.executable, "-c", MACHINE], env=variables, check=True, stdout=subprocess.PIPE, text=True)
    said: dict[str, float] = json.loads(done.stdout)
    print(f"{name:>8} machine: {said['seconds']:6.2f} s; {said['found']} things found, {said['compiled']} compiled")
    return said


def make_bucket(url: str) -> None:
    until = time.monotonic() + 60
    while True:
        try:
            with urllib.request.urlopen(urllib.request.Request(f"{url}/team", method="PUT")):
                return
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)


if __name__ == "__main__":
    sys.exit(main())
