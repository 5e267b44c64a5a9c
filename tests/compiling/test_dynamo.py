"""What `ws.compile` needs of torch's private parts, and what it does where they are other ones."""

import copy
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.compiling.programs import run
from torch._dynamo.variables.torch import constant_fold_functions

import warmstore as ws
from warmstore.compiling import dynamo, torch_hooks
from warmstore.compiling.calls import CONSTANTS, process_state

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")

ASKED_OTHERWISE = {
    "_assert", "_get_device_index", "get_enum", "is_complex", "is_floating_point", "promote_types",  # of arguments
    "get_autocast_dtype", "get_autocast_gpu_dtype", "is_autocast_cpu_enabled", "is_autocast_enabled",  # for each device
    "get_rank", "get_world_size", "is_initialized",  # where there is a process group; of CUDA and XPU, guarded
    "get_device_properties",  # in the environment
    "get_dynamic_layer_stack_depth", "current_device_index", "current_accelerator", "current_device",  # guarded
    "get_overwrite_module_params_on_conversion",  # guarded
}  # fmt: skip


WHOLE = "torch._dynamo.config.optimize_ddp = False leaves them whole"


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[Any]:
    torch._dynamo.reset()
    with_cache = ws.compile_cache.init(tmp_path / "store")
    yield with_cache
    with_cache.close()
    torch._dynamo.reset()


def packages(cache: Any) -> list[Any]:
    """Lookups of what `ws.compile` keeps."""
    return [one for one in cache.session.lookups if one.key.startswith("package/") or one.left]


def test_this_version_has_everything() -> None:
    assert dynamo.missing() == ""


@pytest.mark.parametrize(("holder", "name", "parameters"), dynamo._EXPECTED)
def test_a_changed_part_of_torch_is_named(
    monkeypatch: pytest.MonkeyPatch, holder: Any, name: str, parameters: str
) -> None:
    monkeypatch.setattr(holder, name, lambda other: None)
    assert dynamo.missing() == f"{name} of {holder.__name__} takes other; expected was {parameters}"


def test_whatever_dynamo_takes_for_a_constant_is_known() -> None:
    asked = {*(one.__name__ for one in CONSTANTS), *ASKED_OTHERWISE}
    assert {one.__name__ for one in constant_fold_functions} <= asked
    before = process_state()
    torch.backends.mkldnn.enabled, kept = False, torch.backends.mkldnn.enabled
    try:
        assert process_state() != before
    finally:
        torch.backends.mkldnn.enabled = kept
    assert process_state() == before


def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2 + 1


@pytest.mark.parametrize("how", ["version", "part", "import"])
def test_another_torch_is_left_alone_and_that_is_said_once(
    how: str, cache: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if how == "version":
        monkeypatch.setattr(torch_hooks, "TESTED", ("2.99",))
    elif how == "part":
        monkeypatch.setattr(dynamo, "_EXPECTED", ((dynamo, "missing", "something"),))
    else:
        monkeypatch.setattr(dynamo, "listen", lambda *args: torch.no_such_thing)
    fast = ws.compile(doubled)
    with caplog.at_level(logging.WARNING, "warmstore"):
        for _ in range(2):
            assert fast(torch.ones(3)).tolist() == [3, 3, 3]
    said = {
        "version": "nothing is kept; tested is 2.99",
        "part": "missing of warmstore.compiling.dynamo takes ; expected was something",
        "import": "nothing is kept: module 'torch' has no attribute 'no_such_thing'",
    }[how]
    left = [one.getMessage() for one in caplog.records if "left to torch.compile" in one.getMessage()]
    assert len(left) == 1
    assert said in left[0]
    (lookup,) = packages(cache)
    assert (lookup.key, lookup.left, lookup.hit) == ("doubled", True, False)
    assert said in lookup.why
    assert cache.session.store.stats().counters["left"] == 1


def test_a_copy_is_that_of_torch_compile(cache: Any) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4))
    fast = ws.compile(model)
    x = torch.ones(2, 4)
    expected = model(x)
    assert torch.allclose(fast(x), expected)
    assert torch.allclose(copy.deepcopy(fast)(x), expected)


def test_what_is_compiled_is_used_by_nobody_else(cache: Any) -> None:
    """A package is for `ws.compile`; torch.compile of the same function has its own options and backend."""
    asked = []

    def backend(graph: Any, inputs: Any) -> Any:
        asked.append(graph)
        return graph.forward

    x = torch.ones(3)
    assert ws.compile(doubled)(x).tolist() == [3, 3, 3]
    assert torch.compile(doubled, backend=backend)(x).tolist() == [3, 3, 3]
    assert len(asked) == 1
    assert [one.hit for one in packages(cache)] == [False]


def test_equal_blocks_are_compiled_once(cache: Any) -> None:
    blocks = [torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()) for _ in range(12)]
    fast = [ws.compile(one) for one in blocks]
    x = torch.ones(2, 4)
    for one, plain in zip(fast, blocks, strict=True):
        assert torch.allclose(one(x), plain(x))
    assert len(packages(cache)) == 1


GRADIENTS = """
import torch
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())
torch.manual_seed(0)
fast, x = ws.compile(model), torch.ones(4, 8)
model(x).sum().backward()
values, right = fast(x).detach(), model(x).detach()
"""

PARALLEL = """
import os, torch, torch.distributed as dist
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0", RANK="0", WORLD_SIZE="1")
dist.init_process_group("gloo")
torch._dynamo.config.optimize_ddp = {whole}
model, x = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()), torch.ones(4, 8)
fast = torch.nn.parallel.DistributedDataParallel(ws.compile(model))
fast(x).sum().backward()
values, right = fast(x).detach(), model(x).detach()
dist.destroy_process_group()
"""


def test_parameters_may_have_gradients_when_they_are_compiled(tmp_path: Path) -> None:
    """As where a second size comes after the first step."""
    made, found = (run(GRADIENTS, tmp_path / "store") for _ in range(2))
    assert made.right
    assert found.right
    assert [one["hit"] for one in found.lookups if one["key"].startswith("package/")] == [True]


@pytest.mark.slow
def test_distributed_data_parallel_is_left_alone_or_told_to_keep_graphs_whole(tmp_path: Path) -> None:
    cut, whole = (PARALLEL.format(whole=whole) for whole in (True, False))
    reports = [run(program, tmp_path / "store") for program in (cut, whole, whole)]
    assert all(report.right for report in reports)
    left = [[one["reasons"] for one in report.lookups if one["left"]] for report in reports]
    assert left == [[["DistributedDataParallel cuts its graphs; " + WHOLE]], [], []]
    assert [one["hit"] for one in reports[2].lookups if one["key"].startswith("package/")] == [True]
