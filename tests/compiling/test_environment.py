"""The environment of a process: the same before and after frameworks are imported, and what it depends on."""

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from warmstore.compiling import probes
from warmstore.compiling.environment import Environment
from warmstore.compiling.probes import probe

SAY = """
import sys
{before}
from warmstore.compiling.probes import probe
found = probe()
if not {loaded!r}:
    assert not {{"torch", "jax", "triton"}} & set(sys.modules), "a framework was imported"
print(found.digest, found.to_json())
"""


def said(before: str = "", **variables: str) -> tuple[str, dict[str, Any]]:
    code = SAY.format(before=before, loaded=bool(before))
    environment = {**os.environ, **variables}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    digest, record = done.stdout.split(" ", 1)
    return digest, json.loads(record)


def test_it_is_what_torch_says_and_importing_torch_changes_nothing(tmp_path: Path) -> None:
    digest, record = said(TMPDIR=str(tmp_path))
    assert record["torch"] == torch.__version__
    assert record["torch_git"] == torch.version.git_version
    assert record["torch_path"] == str(Path(torch.__file__).parent)
    assert record["cuda"] == torch.version.cuda
    assert record["capability"].upper() == torch.backends.cpu.get_cpu_capability().upper()
    assert record["python"].endswith(sys.version.split()[0])
    assert record["abi"] == sysconfig.get_config_var("SOABI")
    assert record["gpus"] == [torch.cuda.get_device_name(at) for at in range(torch.cuda.device_count())]
    assert said("import torch", TMPDIR=str(tmp_path))[0] == digest


def test_a_compiler_is_asked_once_by_all_processes_until_it_changes(tmp_path: Path) -> None:
    compiler, asked = tmp_path / "g++", tmp_path / "asked"
    for version in ("1", "22"):
        compiler.write_text(f"#!/bin/sh\necho asked >> {asked}\necho g++ {version}\necho more\n")
        compiler.chmod(0o755)
        records = [said(TMPDIR=str(tmp_path), CXX=f"ccache {compiler}")[1] for _ in range(2)]
        assert [record["compiler"] for record in records] == [f"g++ {version}"] * 2
    assert asked.read_text() == "asked\n" * 2


@pytest.mark.parametrize(
    ("variables", "changed"),
    [
        ({"ATEN_CPU_CAPABILITY": "default"}, {"capability": "default"}),
        ({"OMP_NUM_THREADS": "13"}, {"threads": 13}),
        ({"CXX": "/nowhere/g++"}, {"compiler": None}),
    ],
)
def test_variables_that_change_what_is_compiled_change_it(variables: dict[str, str], changed: dict[str, Any]) -> None:
    digest, record = said(**variables)
    before, plain = said()
    assert {name: record[name] for name in record if record[name] != plain[name]} == changed
    assert digest != before


@pytest.mark.parametrize(("length", "capability"), [(16, "sve128"), (32 + (1 << 17), "sve256"), (-1, "sve")])
def test_vectors_of_arm_have_their_width(length: int, capability: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ATEN_CPU_CAPABILITY", raising=False)
    monkeypatch.setattr(probes.ctypes, "CDLL", lambda name: SimpleNamespace(prctl=lambda *asked: length))
    assert probes._capability(("asimd", "sve")) == capability


def test_a_failure_to_ask_is_not_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "_driver", lambda: "570.10")
    monkeypatch.setattr(probes.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    library = SimpleNamespace(nvmlInit_v2=lambda: 999, nvmlShutdown=lambda: 0)
    monkeypatch.setattr(probes.ctypes, "CDLL", lambda name: library)
    assert probes._gpus() == (("unknown",), ((0, 0),))  # there is a driver, and so a GPU
    library.nvmlInit_v2 = lambda: 0
    library.nvmlDeviceGetCount_v2 = lambda count: setattr(count._obj, "value", 1) or 0
    library.nvmlDeviceGetHandleByIndex_v2 = lambda at, device: 0
    library.nvmlDeviceGetUUID = lambda device, text, size: setattr(text, "value", b"GPU-1") or 0
    library.nvmlDeviceGetName = lambda device, text, size: setattr(text, "value", b"NVIDIA H200") or 0

    def capability(device: object, major: Any, minor: Any) -> int:
        major._obj.value, minor._obj.value = 9, 0
        return 0

    library.nvmlDeviceGetCudaComputeCapability = capability
    assert probes._gpus() == (("NVIDIA H200",), ((9, 0),))
    library.nvmlInit_v2 = lambda: 999
    assert probes._gpus() == (("NVIDIA H200",), ((9, 0),))  # an answer is
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-5f3c0e1a-0000-0000-0000-000000000000")
    assert probes._gpus() == (("unknown",), ((0, 0),))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.setattr(probes, "boot_id", lambda: b"another start of the machine, perhaps with another GPU")
    assert probes._gpus() == (("unknown",), ((0, 0),))


def test_a_version_is_found_without_a_distribution_of_that_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "checkout").mkdir()
    module = tmp_path / "checkout" / "__init__.py"
    found = []
    for text in ('__version__ = "3.4.0"\n', "from .compiled import version\n", "from .other import version\n"):
        module.write_text(text)
        found.append(probes._version("checkout"))
    assert found[0] == "3.4.0"
    assert str(found[1]).startswith("unknown ")
    assert len(set(found)) == 3
    (tmp_path / "checkout" / "version.py").write_text("_version = '0.11'\n")
    assert probes._version("checkout") == "0.11"


def test_an_answer_that_somebody_else_could_have_left_is_not_taken(tmp_path: Path) -> None:
    _, record = said(TMPDIR=str(tmp_path))
    if record["compiler"] is None:
        pytest.skip("needs a compiler")
    (folder,) = tmp_path.glob("warmstore-*")
    (answer,) = folder.iterdir()
    answer.write_text('"forged"')
    assert said(TMPDIR=str(tmp_path))[1]["compiler"] == "forged"  # it is this user's own
    folder.chmod(0o777)
    assert said(TMPDIR=str(tmp_path))[1]["compiler"] == record["compiler"]
    folder.chmod(0o700)
    answer.write_text("{")
    assert said(TMPDIR=str(tmp_path))[1]["compiler"] == record["compiler"]


def test_equal_records_have_equal_digests() -> None:
    here = probe()
    assert probe() is here
    again = Environment.from_json(here.to_json())
    assert (again, again.digest) == (here, here.digest)
    assert Environment.from_json(here.to_json()[:-1] + ',"from a later version":1}') == here
