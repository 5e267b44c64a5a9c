"""Compiled programs on a GPU: Triton's kernels are found by the next process and after a bundle, not on another GPU."""

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from tests.compiling.programs import START, run

from warmstore.compiling import bundles
from warmstore.compiling.store.artifact_store import ArtifactStore
from warmstore.remote.signing import Keyring


@pytest.fixture(autouse=True)
def compilers(cuda: torch.device) -> None:
    """What compiles for the device."""
    if find_spec("triton") is None:
        pytest.skip("triton is not installed")


SINE = """
import torch
x = torch.arange(2000.0, device="cuda")
y = torch.compile(lambda x: torch.sin(x) * 2 + 1)(x)
values, right = y.cpu(), (torch.sin(x) * 2 + 1).cpu()
"""
GRAPHS = SINE.replace("+ 1)(x)", '+ 1, mode="reduce-overhead")(x)').replace("y =", "for _ in range(4): y =")
WS_GRAPHS = GRAPHS.replace("torch.compile(", "ws.compile(")

ANOTHER = (
    """
import dataclasses
from warmstore.compiling import probes
here = probes.probe()
(major, minor), *others = here.compute
moved = dataclasses.replace(here, compute=((major + 1, minor), *others), gpus=("another model",))
probes.probe = lambda: moved
"""
    + START
)
"""A process that finds a GPU of another compute capability."""


def kernels(folder: Path) -> int:
    with ArtifactStore(folder) as store:
        return len(store.all(kind="triton.cubin"))


def test_kernels_are_found_by_the_next_process(tmp_path: Path) -> None:
    cold = run(SINE, tmp_path / "store", fresh=True)
    assert cold.right
    assert cold.misses
    assert kernels(tmp_path / "store")
    warm = run(SINE, tmp_path / "store", fresh=True)
    assert warm.right
    assert warm.misses == []
    assert warm.hits
    assert warm.inductor["fxgraph_cache_hit"] == 1


def test_another_capability_misses(tmp_path: Path) -> None:
    assert run(SINE, tmp_path / "store", fresh=True).right
    moved = run(SINE, tmp_path / "store", start=ANOTHER, fresh=True)
    assert moved.right
    assert not [key for key in moved.hits if "/fxgraph/" in key or "/aotautograd/" in key or "triton" in key]


def test_a_bundle_warms_another_machine(tmp_path: Path) -> None:
    assert run(SINE, tmp_path / "here", fresh=True).right
    with ArtifactStore(tmp_path / "here") as store:
        assert bundles.export(store, tmp_path / "bundle", keyring=Keyring(())).artifacts
    with ArtifactStore(tmp_path / "there") as store:
        bundles.import_(store, tmp_path / "bundle", keyring=Keyring(()))
    there = run(SINE, tmp_path / "there", fresh=True)
    assert there.right
    assert there.misses == []


@pytest.mark.parametrize("code", [GRAPHS, WS_GRAPHS], ids=["torch.compile", "ws.compile"])
def test_modes_with_cuda_graphs_are_left_to_torch(code: str, tmp_path: Path) -> None:
    """Their results stay right when the kernels are found, and no package is made of a program with a graph."""
    for _ in range(2):
        found = run(code, tmp_path / "store", fresh=True)
        assert found.right
    with ArtifactStore(tmp_path / "store") as store:
        assert not store.all(kind="package")
