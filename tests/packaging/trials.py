"""What an environment is tried with: `python trials.py NAME|PAGE` in an empty folder, by the environment's own Python.

It imports nothing of the tests. A use of an optional package works where its extra is installed; elsewhere it raises
the `NotInstalled` that names the extra, and a command prints the same line.
"""

import contextlib
import inspect
import io
import os
import re
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

import warmstore as ws


def names() -> None:
    """Everything public can be imported, whatever is installed."""
    assert Path(ws.__file__).is_relative_to(sys.prefix), ws.__file__
    from warmstore._native import is_compiled

    assert is_compiled, "the compiled part was not built"
    scope: dict[str, Any] = {}
    exec("from warmstore import *", scope)
    members = dict(inspect.getmembers(ws))
    assert all(name in scope and name in members and hasattr(ws, name) for name in ws.__all__)
    assert not hasattr(ws, "Stroe")


def store() -> None:
    """A store is made, appended to, read, verified, converted and loaded, by the API and by commands."""
    fields = {
        "x": ws.Array("float32", (8,)),
        "half": ws.Array("bfloat16", (2,)),
        "text": ws.Text("zstd"),
        "blob": ws.Bytes("lz4"),
        "points": ws.Ragged("int16", 1),
    }
    rows = 100
    values = {
        "x": np.arange(8 * rows, dtype="f4").reshape(rows, 8),
        "text": [f"text {at}" for at in range(rows)],
        "blob": [b"%d" % at * at for at in range(rows)],
        "points": [np.arange(at % 5, dtype="i2") for at in range(rows)],
    }
    import ml_dtypes

    values["half"] = np.ones((rows, 2), ml_dtypes.bfloat16)
    with ws.RecordStore.create("store", fields) as made:
        made.extend(values)
    with ws.RecordStore.open("store", mode="a") as more:
        more.append({name: column[3] for name, column in values.items()})
    with ws.RecordStore.open("store") as there:
        batch = there.gather([9, 100, 3])
        assert batch["x"][:, 0].tolist() == [72, 24, 24]
        assert batch["text"][0] == "text 9"
        assert bytes(batch["blob"][2]) == b"333"
        assert there.verify().ok
        table = there.to_arrow(fields=["x", "text"])
        assert table.num_rows == rows + 1
        loader = ws.Loader({"x": there["x"]}, batch_size=16, sampler=ws.Shuffle(seed=0), workers=0)
        assert sum(len(batch["x"]) for batch in loader) == rows + 1
    np.save("rows.npy", values["x"])
    command("store", "convert", "rows.npy", "rows", "--no-progress")
    command("store", "export", "store", "out.parquet", "--no-progress")
    command("store", "inspect", "store")
    command("store", "verify", "store")


def cached() -> None:
    """The results of a function are kept, and found again."""
    keep = ws.cached("results")(_squares)
    assert keep(3).tolist() == keep(3).tolist() == [9] * 16


def helps() -> None:
    """Every command has a help."""
    import typer.main

    from warmstore.cli import app

    def show(group: Any, *words: str) -> int:
        with contextlib.redirect_stdout(io.StringIO()) as text, contextlib.suppress(SystemExit):
            app_command.main([*words, "--help"], prog_name="warmstore", standalone_mode=False)
        assert "Usage: " in text.getvalue(), words
        below = getattr(group, "commands", {})
        return 1 + sum(show(below[name], *words, name) for name in below)

    app_command = typer.main.get_command(app)
    assert show(app_command) > 30
    assert "Usage: " in command("--help")
    assert command("--version").startswith("warmstore ")
    failed = subprocess.run([*_SCRIPT, "store", "verify", "none"], capture_output=True, text=True, check=False)
    assert failed.returncode, failed
    assert failed.stderr.startswith("Error: "), failed
    assert len(failed.stderr.splitlines()) == 1, failed


def torch_modules() -> None:
    import torch

    module = torch.nn.Linear(8, 4).requires_grad_(False)
    with ws.FeatureCache("features", "linear") as cache:
        cached = ws.CachedModule(module, cache)
        x = torch.rand(16, 8)
        first, second = (cached(x, cache_ids=torch.arange(16)) for _ in range(2))
        assert torch.equal(first, second)
        assert len(cache) == 16
    command("features", "stats", "features")


def compile_cache() -> None:
    ws.compile_cache.init("compiled", job="trial")
    import torch

    assert torch.compile(lambda x: x.sin() + 1)(torch.zeros(4)).tolist() == [1.0] * 4
    ws.compile_cache.stats()
    command("compiled", "stats", "--dir", "compiled")


def signing() -> None:
    from warmstore.remote.signing import SigningKey

    key = SigningKey.new("ed25519")
    assert key.public.checks(b"message", key.sign(b"message"))
    command("signing-keys", "generate", "--kind", "ed25519")


def remote() -> None:
    url = Path("remote").absolute().as_uri()
    with ws.RecordStore.create("local", {"x": ws.Array("int64")}) as local:
        local.extend({"x": np.arange(100)})
        local.push(url)
    with ws.RecordStore.open(url, cache_dir="blocks") as there:
        assert there["x"][[3, 99]].tolist() == [3, 99]
    command("store", "pull", url, "copy", "--no-progress")


def pipeline() -> None:
    pipe = ws.Pipeline(list(range(200))).step(_squares)
    plan = pipe.plan(memory="1KB", disk="1MB", folder="samples")
    plan.plot("plan.png")
    with pipe.loader(plan, batch_size=10, workers=0) as loader:
        assert sum(int(batch.sum()) for batch in loader) > 0


def _squares(value: int) -> Any:
    return np.full(16, value * value)


def jax() -> None:
    with ws.RecordStore.create("for_jax", {"x": ws.Array("float32")}) as made:
        made.extend({"x": np.arange(10, dtype="f4")})
        batches = list(ws.Loader({"x": made["x"]}, batch_size=5, sampler=ws.Sequential(), to="jax", workers=0))
    assert type(batches[0]["x"]).__module__.startswith("jax")
    assert float(batches[1]["x"].sum()) == 35


def hugging_face() -> None:
    import datasets

    datasets.Dataset.from_dict({"n": [1, 2, 3], "text": ["a", "b", "c"]}).save_to_disk("data_set")
    with ws.convert("data_set", "from_data_set", progress=False) as made:
        assert made["n"][:].tolist() == [1, 2, 3]


def hdf5() -> None:
    import h5py

    with h5py.File("data.h5", "w") as file:
        file["x"] = np.arange(10)
    with ws.convert("data.h5", "from_h5", progress=False) as made:
        assert made["x"][:].tolist() == list(range(10))


def array_records() -> None:
    from array_record.python.array_record_module import ArrayRecordWriter

    writer = ArrayRecordWriter("data.array_record", "group_size:1")
    writer.write(b"one")
    writer.close()
    with ws.convert("data.array_record", "from_array_record", progress=False) as made:
        assert len(made) == 1


def images() -> None:
    from PIL import Image

    Path("images/cat").mkdir(parents=True)
    Image.new("RGB", (4, 4)).save("images/cat/a.png")
    with ws.convert("images", "from_images", decode=True, progress=False) as made:
        assert made["image"][:].shape == (1, 4, 4, 3)


def demo() -> None:
    command("demo", "--epochs", "1")


def ray() -> None:
    import ray

    import warmstore.ray

    ray.init("local", num_cpus=1, include_dashboard=False)
    with ws.RecordStore.create("for_ray", {"n": ws.Array("int64")}) as made:
        made.extend({"n": np.arange(100)})
    assert warmstore.ray.read("for_ray").sum("n") == 4950


def page(name: str) -> None:
    """The code of a page runs as a reader pastes it, with no more installed than the page says."""
    text = (Path(__file__).parent.parent.parent / name).read_text()
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    shared = [block for block in blocks if not re.match(r"# (needs:|[\w-]+\.py)", block)]
    assert shared
    Path("program.py").write_text("\n".join(shared))
    done = subprocess.run([sys.executable, "program.py"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


USES: dict[str, tuple[Callable[[], None], tuple[str, ...]]] = {
    "torch": (torch_modules, ("torch",)),
    "compile": (compile_cache, ("blake3", "filelock", "platformdirs", "torch")),
    "sign": (signing, ("cryptography",)),
    "remote": (remote, ("obstore",)),
    "pipeline": (pipeline, ("scipy", "matplotlib", "torch")),
    "jax": (jax, ("jax",)),
    "hf": (hugging_face, ("datasets",)),
    "hdf5": (hdf5, ("h5py",)),
    "array_record": (array_records, ("array_record",)),
    "images": (images, ("PIL",)),
    "demo": (demo, ("sklearn", "scipy", "PIL", "blake3", "torch")),
    "ray": (ray, ("ray", "torch", "obstore")),
}
"""Uses by name, with the packages that they need, as they are imported."""


def missing() -> None:
    """What needs a package that is not installed names the extra that brings it, in the API and in one line."""
    Path("a.array_record").touch()
    Path("a.h5").touch()
    with ws.RecordStore.create("small", {"x": ws.Array("float32")}) as made:
        made.extend({"x": np.zeros(4, "f4")})
        calls: dict[str, tuple[str, Callable[[], Any]]] = {
            "torch": ("torch", lambda: ws.CachedModule(None, None)),
            "blake3": ("compile", lambda: ws.compile_cache.init("none")),
            "obstore": ("remote", lambda: ws.RecordStore.open("s3://bucket/store")),
            "jax": ("jax", lambda: ws.Loader({"x": made["x"]}, batch_size=2, to="jax")),
            "array_record": ("convert", lambda: ws.convert("a.array_record", "none")),
            "h5py": ("convert", lambda: ws.convert("a.h5", "none")),
            "nvidia": ("dali", lambda: ws.Dali(lambda value: value)),
        }
        if find_spec("torch"):
            calls["scipy"] = "pipeline", lambda: ws.Pipeline(list(range(200))).step(_squares).plan(memory="1KB")
        for module, (extra, call) in calls.items():
            if find_spec(module) is None:
                message = "none"
                try:
                    call()
                except ws.NotInstalled as error:
                    message = str(error)
                assert f"pip install 'warmstore[{extra}]'" in message, (module, message)
    commands = {
        "blake3": ("compile", "compiled stats"),
        "cryptography": ("sign", "signing-keys generate --kind ed25519"),
        "obstore": ("remote", "store push small s3://bucket/x"),
        "h5py": ("convert", "store convert a.h5 none"),
        "sklearn": ("demo", "demo"),
    }
    for module, (extra, line) in commands.items():
        if find_spec(module) is None:
            done = subprocess.run([*_SCRIPT, *line.split()], capture_output=True, text=True, check=False)
            assert (done.returncode, len(done.stderr.splitlines())) == (1, 1), (line, done)
            assert done.stderr.endswith(f"pip install 'warmstore[{extra}]'\n"), (line, done.stderr)


_SCRIPT = [str(Path(sys.executable).parent / "warmstore")]
BASE = {"names": names, "store": store, "cached": cached, "helps": helps, "missing": missing}


def command(*words: str) -> str:
    """What `warmstore` prints with these arguments. It must succeed."""
    done = subprocess.run([*_SCRIPT, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"warmstore {' '.join(words)}: {done.stderr or done.stdout}"
    return done.stdout


if __name__ == "__main__":
    os.environ["COLUMNS"] = "200"
    name = sys.argv[1]
    if name.endswith(".md"):
        page(name)
    else:
        (BASE[name] if name in BASE else USES[name][0])()
