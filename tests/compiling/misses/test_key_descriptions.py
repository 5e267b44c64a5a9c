"""What a miss says: which part of a key, or of the environment, is another one than the nearest's."""

from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
from tests.compiling.environments import HERE
from tests.compiling.programs import SINE, SQUARES, run

from warmstore.compiling.environment import Environment
from warmstore.compiling.misses.key_descriptions import KeyDescription, of_source, of_torch, summary
from warmstore.compiling.misses.miss_reasons import MissReasons
from warmstore.compiling.store.artifact_store import ArtifactStore
from warmstore.errors import BadArtifact

TENSOR = (
    "TensorMetadata(dtype=torch.{dtype}, shape=torch.Size([{shape}]), stride=({stride}), device=device(type='cpu'), "
    "layout=torch.strided, requires_grad=False)"
)
GRAPH = """GraphModule()

def forward(self, {names}):
    {first} = torch.ops.aten.sin.default({names});  {names} = None
    mul_1 = torch.ops.aten.mul.Tensor({first}, {by})
    return (mul_1,)

# To see more debug info, please use `graph_module.print_readable()`"""

_digests = count()


def lines(
    shape: str = "8, 16",
    stride: str = "16, 1",
    dtype: str = "float32",
    names: str = "x",
    by: str = "2",
    **config: object,
) -> list[str]:
    """What torch says of a key; what is equal has an equal hash there, too, but for the graph's."""
    graph = GRAPH.format(names=names, by=by, first=f"sin_{next(_digests)}")
    tensor = TENSOR.format(dtype=dtype, shape=shape, stride=stride)
    return [
        f"[h{next(_digests)}] gm: {graph}",
        f"[hi] example_inputs[0]: {tensor}",
        *(f"[hc] inductor_config[{name}]: {value}" for name, value in config.items()),
    ]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"shape": "4, 16"}, ["input 0: shape (8, 16) -> (4, 16)"]),
        ({"shape": "4, 8", "stride": "8, 1"}, ["input 0: shape (8, 16) -> (4, 8)"]),
        ({"stride": "1, 8"}, ["input 0: strides (16, 1) -> (1, 8)"]),
        ({"dtype": "bfloat16"}, ["input 0: dtype float32 -> bfloat16"]),
        ({"by": "3"}, ["the program changed: new aten.mul.Tensor(_, 3) and gone aten.mul.Tensor(_, 2)"]),
        ({"names": "z"}, []),
        ({"epilogue_fusion": False}, ["config epilogue_fusion: True -> False"]),
        ({"flag": 1}, ["config flag: none -> 1"]),
        ({}, []),
    ],
)
def test_a_changed_part_is_named(change: dict[str, object], said: list[str]) -> None:
    options = {"epilogue_fusion": True}
    before, now = of_torch(lines(**options)), of_torch(lines(**{**options, **change}))
    assert now.changes_from(before) == said
    assert KeyDescription.from_bytes(before.to_bytes()) == before


def test_a_tensor_that_became_a_number() -> None:
    number = of_torch(["[h] example_inputs[0]: s77"])
    assert number.changes_from(of_torch(lines()[1:])) == ["input 0: tensor (8, 16) -> s77"]


def test_long_values_are_compared_and_not_shown() -> None:
    first, second = (of_torch([f"[{digest}] inductor_config[x]: {'y' * 500}"]) for digest in ("a", "b"))
    assert second.changes_from(first) == ["config x: changed"]
    assert len(first.to_bytes()) < 300


def test_the_command_of_the_compiler_is_compared_word_by_word() -> None:
    before, now = (of_source("int x;", f"g++ -O3 {flag} -o <lib>") for flag in ("-march=native", "-mavx2"))
    assert sorted(now.changes_from(before)) == [
        "gone from the compiler's command -march=native", "new in the compiler's command -mavx2"
    ]  # fmt: skip
    assert now.likeness(of_source("int y;", "g++ -O3 -mavx2 -o <lib>")) == 0


def test_only_the_first_changes_are_said() -> None:
    assert summary(["a", "b", "c"], 2) == ("a", "b", "1 more")


@pytest.mark.parametrize("data", [b"", b"x", b"\x80\x04."])
def test_what_is_no_details_is_refused(data: bytes) -> None:
    with pytest.raises(BadArtifact, match="not the description of a key"):
        KeyDescription.from_bytes(data)


def miss(folder: Path, path: str, environment: Environment = HERE, job: str = "job", **change: str) -> tuple[str, ...]:
    """Miss in a process of its own, compile, and keep it."""
    with ArtifactStore(folder) as store:
        explanations = MissReasons(store, environment, job)
        explanations.describe(path, lambda: of_torch(lines(**change)))
        said = explanations.why(path)
        key = explanations.keep(path + "file")
        assert key is not None
        assert explanations.keep(path + "other") is None
        store.record_job(job, [key])
        return said


def test_the_nearest_of_the_same_job_is_compared_with(tmp_path: Path) -> None:
    graph = "inductor/fxgraph/ab/fab{}/"
    assert miss(tmp_path, graph.format(0), by="7", job="other") == ()
    assert miss(tmp_path, graph.format(1), shape="2, 2") == (
        "input 0: shape (8, 16) -> (2, 2)",
        "the program changed: new aten.mul.Tensor(_, 2) and gone aten.mul.Tensor(_, 7)",
    )  # of another job, where this one has nothing
    assert miss(tmp_path, graph.format(2)) == ("input 0: shape (2, 2) -> (8, 16)",)
    assert miss(tmp_path, graph.format(3), shape="4, 16") == ("input 0: shape (8, 16) -> (4, 16)",)
    assert miss(tmp_path, graph.format(4), replace(HERE, torch="2.14.0", isa=("avx2",)), shape="4, 16") == (
        "torch 2.13.0 -> 2.14.0",
        "no avx, avx512f, fma",
    )
    assert miss(tmp_path, graph.format(3), shape="4, 16") == (
        "it was compiled here before, and evicted or dropped since",
    )
    assert miss(tmp_path, "inductor/aotautograd/akey/", shape="4, 16") == ()  # of another kind nothing is there


def test_another_program_is_told_as_such(tmp_path: Path) -> None:
    with ArtifactStore(tmp_path) as store:
        explanations = MissReasons(store, HERE, "job")
        for at, operators in enumerate(({"a": 3, "b": 1}, {"c": 4})):
            path = f"inductor/fxgraph/ab/fab{at}/"
            explanations.describe(path, lambda operators=operators: KeyDescription({}, operators))
            said = explanations.why(path)
            explanations.keep(path)
    assert said == ("nothing like it was compiled here before",)


def test_damaged_details_stop_nothing(tmp_path: Path) -> None:
    miss(tmp_path, "inductor/fxgraph/ab/fab0/")
    for path in (tmp_path / "blobs").glob("*/*"):
        path.write_bytes(b"x")
    assert miss(tmp_path, "inductor/fxgraph/ab/fab1/") == ("nothing like it was compiled here before",)


@pytest.mark.slow
def test_an_edited_program_says_what_changed(filled: Path) -> None:
    report = run(SINE.replace("* 2 + 1", "* 3 + 1"), filled)
    assert report.right
    said = {one["key"].split("/")[1]: one["changed"] for one in report.lookups}
    assert said["fxgraph"] == ["the program changed: new aten.mul.Tensor(_, 3) and gone aten.mul.Tensor(_, 2)"]
    assert said["aotautograd"] == ["the program changed: new _ * 3 and gone _ * 2"]
    assert all(one["changed"] for one in report.lookups)


@pytest.mark.slow
def test_an_option_of_inductor_is_named(filled: Path) -> None:
    """And the library, which is the same, is found."""
    option = "import torch._inductor.config as config; config.epilogue_fusion = False\n"
    report = run(option + SINE, filled)
    graphs = [one["changed"] for one in report.lookups if "/fxgraph/" in one["key"]]
    assert graphs == [["config epilogue_fusion: True -> False"]]
    assert [key for key in report.hits if key.endswith(".main.so")]


@pytest.mark.slow
def test_what_inductor_does_not_look_for_has_a_reason(filled: Path) -> None:
    option = "import torch._inductor.config as config; config.joint_custom_pre_pass = lambda graph: None\n"
    report = run(option + SINE, filled)
    assert report.right
    said = {one["key"]: one["reasons"] for one in report.lookups}
    assert "Unsupported joint custom pass" in said["inductor/fxgraph"][0]


@pytest.mark.slow
def test_an_edited_jax_program_says_what_changed(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    run(SQUARES, tmp_path / "store")
    report = run(SQUARES.replace("arange(100.0)", "arange(50.0)"), tmp_path / "store")
    (squares,) = [one["changed"] for one in report.lookups if "jit__lambda" in one["key"]]
    assert squares[0] == "input 0: type tensor<100xf32> -> tensor<50xf32>"
