"""The programs of the pages on clusters run as they stand, in processes and folders of their own."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("page", "package"), [("docs/ray.md", "ray"), ("docs/spark.md", "pyspark")])
def test_the_programs_of_a_page_run(page: str, package: str, tmp_path: Path) -> None:
    pytest.importorskip(package, reason="pip install 'warmstore[fleet]'")
    program = "\n".join(re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL))
    (tmp_path / "program.py").write_text(program)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "program.py"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
