"""However a program ends, nothing stays in memory, and nothing is said but what happened."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from tests.slow import thinned

PROGRAM = """
    import os, signal, sys
    from pathlib import Path
    import numpy as np
    from tests.pipeline.functions import make, shake, slow_image
    from tests.pipeline.making import plan_of
    import warmstore as ws

    def main():
        workers, method, end = int(sys.argv[1]), sys.argv[2], sys.argv[3]
        pipe = ws.Pipeline(range(int(sys.argv[4]))).step(slow_image).step(shake, random=True)
        plan = plan_of(pipe, [(1, "memory", "raw")], [len(pipe)])
        loader = pipe.loader(plan, 4, workers=workers, start_method=method)
        held = next(one for one in loader._source.held if hasattr(one, "limit"))
        print(held.folder, flush=True)
        list(loader)
        batches = iter(loader)
        next(batches)
        if end == "error":
            raise KeyError("an error of the program")
        if end == "group":
            os.killpg(os.getpgid(0), signal.SIGINT)
        if end == "kept":
            globals()["_kept"] = loader, batches

    if __name__ == "__main__":
        main()
"""


@pytest.mark.parametrize(
    ("workers", "method", "end"),
    thinned(
        5, [(2, "fork", "group"), (0, "fork", "kept"), (2, "fork", "kept"), (2, "fork", "error"), (2, "spawn", "kept")]
    ),
)
def test_however_it_ends(tmp_path: Path, workers: int, method: str, end: str) -> None:
    script = tmp_path / "program.py"
    script.write_text(textwrap.dedent(PROGRAM))
    size = 40 + len(end) + 100 * workers  # a pipeline of its own for each
    done = subprocess.run(
        [sys.executable, "-W", "error::ResourceWarning", str(script), str(workers), method, end, str(size)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, [Path.cwd(), *sys.path]))},
        start_new_session=True,
        timeout=300,
        check=False,
    )
    codes = {"error": 1, "group": -signal.SIGINT}
    assert done.returncode == codes.get(end, 0), done.stderr
    folder = Path(done.stdout.split()[0])
    assert folder.name.startswith("warmstore-")
    assert not folder.exists()
    assert done.stderr.count("Traceback") == (end != "kept"), done.stderr  # of the program, and of no worker
    assert end != "kept" or not done.stderr
