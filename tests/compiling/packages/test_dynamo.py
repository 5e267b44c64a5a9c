"""What `ws.compile` needs of torch's private parts, and what it does where they are other ones."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.compiling.programs import Report, run
from torch._dynamo.variables.torch import constant_fold_functions

from warmstore.compiling.keys.call_keys import CONSTANTS, is_transformed, process_state
from warmstore.compiling.packages import dynamo
from warmstore.compiling.packages.compiled_program import CompiledProgram, _Call
from warmstore.compiling.packages.package import Package

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")

ASKED_OTHERWISE = {
    "_assert", "_get_device_index", "get_enum", "is_complex", "is_floating_point", "promote_types",  # of arguments
    "get_autocast_dtype", "get_autocast_gpu_dtype", "is_autocast_cpu_enabled", "is_autocast_enabled",  # for each device
    "get_rank", "get_world_size", "is_initialized",  # where there is a process group; of CUDA and XPU, guarded
    "get_device_properties",  # in the environment
    "get_dynamic_layer_stack_depth", "current_device_index", "current_accelerator", "current_device",  # guarded
    "get_overwrite_module_params_on_conversion",  # guarded
}  # fmt: skip


WHOLE = "torch._dynamo.config.optimize_ddp = False"


def test_this_version_has_everything() -> None:
    assert dynamo.missing() == ""


@pytest.mark.parametrize(("holder", "name", "parameters"), dynamo._EXPECTED)
def test_a_changed_part_of_torch_is_named(
    monkeypatch: pytest.MonkeyPatch, holder: Any, name: str, parameters: str
) -> None:
    monkeypatch.setattr(holder, name, lambda other: None)
    assert dynamo.missing() == f"{name} of {holder.__name__} takes other; expected {parameters}"


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


def test_a_setting_of_which_torch_cannot_tell_counts_as_mixed() -> None:
    """The older name of a setting raises once the newer one was used for a part of it."""
    convolutions, before = torch.backends.cudnn.conv, process_state()
    kept = convolutions.fp32_precision
    convolutions.fp32_precision = "ieee"
    try:
        assert dict(process_state())["cudnn.allow_tf32"] == "'mixed'"
    finally:
        convolutions.fp32_precision = kept
    assert process_state() == before


def test_hooks_of_saved_tensors_that_are_graphs_transform_a_call() -> None:
    """Dynamo adds them to the graph, and torch's guard of a package compares those of the process that restores it."""
    graph = torch.fx.symbolic_trace(lambda x: x.sin())
    assert not is_transformed()
    with torch.autograd.graph.saved_tensors_hooks(graph, graph):
        assert is_transformed()
    with torch.autograd.graph.saved_tensors_hooks(torch.sin, torch.sin):
        assert not is_transformed()


OTHERS = """
import torch
from warmstore.compiling.hooks import torch_hooks
from warmstore.compiling.packages import dynamo
from warmstore.compiling.packages.compiled_program import CompiledProgram, _Call
from warmstore.compiling.packages.package import Package

def doubled(x):
    return x * 2 + 1

def twice(how):
    doubled.__qualname__ = how
    fast = ws.compile(doubled)
    assert [fast(torch.ones(3)).tolist() for _ in range(2)] == [[3, 3, 3]] * 2

tested, torch_hooks.TESTED = torch_hooks.TESTED, ("2.99",)
twice("version")
torch_hooks.TESTED, expected = tested, dynamo._EXPECTED
dynamo._EXPECTED = ((dynamo, "missing", "something"),)
twice("part")
dynamo._EXPECTED, dynamo.listen = expected, lambda *args: torch.no_such_thing
twice("import")
assert cache.session.store.stats().counters["left"] == 3
values = right = torch.ones(1)
"""

TOGETHER = """
import copy, torch
x = torch.ones(2, 4)
fresh = lambda: torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
blocks = [fresh() for _ in range(12)]
fast = [ws.compile(one) for one in blocks]
for one, plain in zip(fast, blocks):
    assert torch.allclose(one(x), plain(x))
packages = lambda: [one.hit for one in ws.compile_cache.lookups() if one.key.startswith("package/")]
assert packages() == [False]  # blocks that are equal are compiled once
values, right = copy.deepcopy(fast[0])(x).detach(), blocks[0](x).detach()  # a copy is that of torch.compile
asked = []

def backend(graph, inputs):
    asked.append(graph)
    return graph.forward

assert torch.allclose(torch.compile(blocks[0], backend=backend)(x), right)
assert len(asked) == 1  # what is compiled is for `ws.compile`, and others have their own options and backend
assert packages() == [False]
"""


@pytest.mark.slow
def test_another_torch_is_left_alone_and_that_is_said_once(tmp_path: Path) -> None:
    report = run(OTHERS, tmp_path / "store")
    said = {one["key"]: " ".join(one["reasons"]) for one in report.lookups if one["left"]}
    assert "; tested: 2.99" in said["version"]
    assert said["part"] == "missing of warmstore.compiling.packages.dynamo takes ; expected something"
    assert ": module 'torch' has no attribute 'no_such_thing'" in said["import"]
    assert len([one for one in report.lookups if one["left"]]) == len(said) == 3
    assert [report.stderr.count(f"{how} is left to torch.compile: ") for how in said] == [1, 1, 1]


@pytest.mark.slow
def test_equal_blocks_share_what_is_compiled_and_nobody_else_does(tmp_path: Path) -> None:
    assert run(TOGETHER, tmp_path / "store").right


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


@pytest.mark.slow
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
    assert left == [[["DistributedDataParallel splits its graphs; set " + WHOLE]], [], []]
    assert [one["hit"] for one in reports[2].lookups if one["key"].startswith("package/")] == [True]


LIMITED = """
import torch
torch._dynamo.config.recompile_limit = 1
def limited(x, doubled):
    return x * 2 if doubled else x.sin()
fast, x = ws.compile(limited), torch.arange(8.0)
for doubled in {doubled}:
    values, right = fast(x, doubled), limited(x, doubled)
"""

SUPPRESSED = """
import torch
torch._dynamo.config.suppress_errors = True
fast, x = ws.compile(torch.nn.Softmax(dim=0)), torch.arange(8.0)
values, right = fast(x), torch.softmax(x, 0)
"""


def packages(report: Report) -> list[tuple[str, bool]]:
    """The frames of which packages were looked for, and whether each was found."""
    found = [one for one in report.lookups if one["key"].startswith("package/")]
    return [(one["key"].rpartition("/")[2], one["hit"]) for one in found]


@pytest.mark.slow
def test_a_frame_that_one_process_has_compiled_too_often_is_compiled_by_others(tmp_path: Path) -> None:
    made, found = (run(LIMITED.format(doubled=doubled), tmp_path / "store") for doubled in ([True, False], [False]))
    assert made.right
    assert found.right
    assert packages(found) == [("root", False)]
    assert [" ".join(one["reasons"]) for one in made.lookups if one["left"]] == [
        "this process has compiled it too often"
    ]


@pytest.mark.slow
def test_a_frame_that_one_process_could_not_compile_is_compiled_by_others(tmp_path: Path) -> None:
    reports = [run(SUPPRESSED, tmp_path / "store", env=env) for env in ({"PATH": "/no/compiler"}, {}, {})]
    assert all(report.right for report in reports)
    assert "torch could not compile it here" in str([one["reasons"] for one in reports[0].lookups if one["left"]])
    assert [packages(report)[0] for report in reports] == [("root", False), ("root", False), ("root", True)]


def test_a_package_with_guards_comes_before_one_that_leaves_the_frame_to_python() -> None:
    answers = {b"left": SimpleNamespace(guarded_code=None), b"guarded": SimpleNamespace(guarded_code="code")}
    question: Any = SimpleNamespace(restore=lambda data, check, holds: (answers[data], {}, ""))
    program = CompiledProgram(torch.sin, {}, None, ())
    stored = [Package("helper", (), (), (), False, "", data) for data in answers]
    found = [program._restored(question, _Call(program, (), {}, False, packages=stored[:n]), "helper") for n in (1, 2)]
    assert found == [(answers[b"left"], []), (answers[b"guarded"], [])]
