"""The face of a pipeline: steps, names, errors."""

import functools
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests import warm
from tests.pipeline.functions import change, fail_at, flip, make, shake
from tests.pipeline.making import check, expected, plan_of, same

import warmstore as ws

pytestmark = pytest.mark.forks


def test_a_pipeline_does_not_change() -> None:
    pipe = ws.Pipeline([1, 2, 3])
    longer = pipe.step(change, by=3)
    assert (len(pipe.steps), len(longer.steps)) == (0, 1)
    assert pipe[1] == 2
    assert longer[1] == 3
    assert longer[-1] == 4
    assert len(longer) == 3
    with pytest.raises(IndexError):
        longer[3]
    assert repr(longer.step(flip, random=True)) == "Pipeline(3 samples, change -> flip)"
    assert pickle.loads(pickle.dumps(longer))[0] == 2


def test_names() -> None:
    pipe = ws.Pipeline([1]).step(change).step(change).step(functools.partial(change, by=2)).step(change, name="last")
    assert [step.name for step in pipe.steps] == ["change", "change_2", "change_3", "last"]
    with pytest.raises(ValueError, match="two steps are called 'last'"):
        pipe.step(change, name="last")


def scaled(value: Any, name: int, random: int = 1, cache: int = 1) -> Any:
    """A function whose arguments have the names of options."""
    return value * name * random * cache


def test_args_hold_arguments_that_have_the_names_of_options() -> None:
    pipe = ws.Pipeline([1, 2]).step(scaled, args={"name": 3, "random": 5}, name="mine")
    assert pipe[1] == 30
    assert pipe.steps[0].name == "mine"
    assert not pipe.steps[0].random
    same_key, other = ({"name": 3, "random": 5}, {"name": 3, "random": 6})
    digests = [
        ws.Pipeline([1]).step(scaled, args=args, name="mine").identities.descriptions()[0]["digest"]
        for args in (same_key, dict(reversed(same_key.items())), other)
    ]
    assert digests[0] == digests[1] != digests[2]


def test_args_that_cannot_be() -> None:
    with pytest.raises(TypeError, match="the argument 'by' is given twice, in args and by name"):
        ws.Pipeline([1]).step(change, args={"by": 1}, by=2)
    for args in ([("by", 1)], {1: 2}):
        with pytest.raises(TypeError, match="args must be a dict of the function's arguments by name"):
            ws.Pipeline([1]).step(change, args=args)  # type: ignore[arg-type]
    given = {"name": 2}
    pipe = ws.Pipeline([1]).step(scaled, args=given)
    given["name"] = 9
    assert pipe[0] == 2  # the dict is copied


def test_map_is_step() -> None:
    pipe = ws.Pipeline([1, 2]).map(change, by=3).map(shake, random=True, args={"most": 4})
    by_step = ws.Pipeline([1, 2]).step(change, by=3).step(shake, random=True, most=4)
    assert pipe.steps == by_step.steps
    assert pipe[1] == by_step[1]


class Batches:
    """A data set that reads many samples at once."""

    def __init__(self, many: Any) -> None:
        self.many = many

    def __len__(self) -> int:
        return 10

    def __getitem__(self, at: int) -> Any:
        return at

    def __getitems__(self, positions: list[int]) -> Any:
        return self.many(positions)


def test_data_sets_that_read_many_at_once() -> None:
    def batches(many: Any) -> list[Any]:
        return [batch.tolist() for batch in ws.Pipeline(Batches(many)).step(change).loader(None, 2, workers=0)]

    assert batches(list) == batches(np.array) == batches(lambda at: [int(one) for one in at])
    for many, said in ((lambda at: {"x": at, "y": at}, "a dict of 2"), (lambda at: at[:1], "a list of 1")):
        with pytest.raises(ws.BadSource, match=f"__getitems__ of Batches gave {said} for 2 positions"):
            batches(many)


def test_steps_check_themselves() -> None:
    with pytest.raises(TypeError, match="a step is a function of a value; got 3"):
        ws.Pipeline([1]).step(3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"cache must be one of .* step 'change' has 'ram'"):
        ws.Pipeline([1]).step(change, cache="ram")  # type: ignore[arg-type]
    with pytest.raises(ws.BadSource, match="int is no source"):
        ws.Pipeline(3)


def test_dali_is_asked_for_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nvidia.dali", None)
    with pytest.raises(ws.NotInstalled, match=r"pip install 'warmstore\[dali\]"):
        ws.Dali(change)


def test_how_much_can_be_kept() -> None:
    pipe = ws.Pipeline([1]).step(change).step(shake, random=True).step(change)
    assert pipe.cacheable == 1
    assert ws.Pipeline([1]).step(shake, random=True).cacheable == 0


def test_sources(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(12).reshape(6, 2))
    both = ws.Pipeline({"x": tmp_path / "x.npy", "y": np.arange(6)}).step(lambda pair: {**pair, "y": pair["y"] + 1})
    assert same(both[2], {"x": np.array([4, 5]), "y": np.int64(3)})
    with both.loader(plan_of(both, [(1, "memory", "raw")], [6]), 4, workers=0, sampler=ws.Sequential()) as loader:
        for _ in range(2):
            assert [batch["y"].tolist() for batch in loader] == [[1, 2, 3, 4], [5, 6]]


def test_frames_have_rows_and_a_series_has_positions(tmp_path: Path) -> None:
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"path": [str(tmp_path / name) for name in "abcd"], "label": range(4)})
    for name in "abcd":
        (tmp_path / name).write_text(name)
    part = frame.iloc[[2, 0, 3]]
    rows = [{"path": str(tmp_path / name), "label": at} for name, at in (("c", 2), ("a", 0), ("d", 3))]
    table = pa.Table.from_pandas(part, preserve_index=False)
    others = pytest.importorskip("polars").from_arrow(table)
    for source in (part, table, others):
        assert list(ws.Pipeline(source)) == rows
    assert list(ws.Pipeline(part["label"])) == [2, 0, 3]
    assert list(ws.Pipeline(pd.Series([(1, "a"), (2, "b")], index=[1, 0]))) == [(1, "a"), (2, "b")]
    for source, function in ((part, read_row), (part["path"], read_text), (others, read_row)):
        pipe = ws.Pipeline(source).step(function)
        plan = plan_of(pipe, [(1, "disk", "raw")], folder=tmp_path / "plan")
        for wanted in (3, 0):
            assert pipe.fill(plan, workers=0).computed == wanted
        (tmp_path / "c").write_text("other")
        with ws.Pipeline(source).step(function).loader(plan, 3, workers=0, sampler=ws.Sequential()) as loader:
            assert list(loader) == [["other", "a", "d"]]
        (tmp_path / "c").write_text("c")


def read_text(path: str) -> str:
    return Path(path).read_text()


def read_row(row: dict[str, Any]) -> str:
    return read_text(row["path"])


def test_a_loader_takes_a_pipeline() -> None:
    pipe = ws.Pipeline(range(10)).step(make, kind="number").step(shake, random=True)
    check(ws.Loader(pipe, 4, ws.Shuffle(seed=0)), lambda epoch: expected(pipe, 4, 0, epoch), range(2))
    aligned = ws.Loader({"a": pipe, "b": np.arange(10)}, 4, ws.Shuffle(seed=0))
    for epoch in range(2):
        got = [batch["a"].tolist() for batch in aligned]
        assert got == [batch.tolist() for batch in expected(pipe, 4, 0, epoch)]


@pytest.mark.parametrize("workers", [0, 2])
def test_errors_of_steps_say_where(workers: int) -> None:
    pipe = ws.Pipeline(range(20)).step(fail_at, bad=13).step(change)
    plan = plan_of(pipe, [(1, "memory", "raw")], [20])
    with pipe.loader(plan, 8, workers=workers, sampler=ws.Sequential()) as loader:
        got = []
        with pytest.raises(ValueError, match="sample 13 is broken") as raised:
            got.extend(loader)
        text = str(raised.value) + "".join(getattr(raised.value, "__notes__", []))
        assert "in step 'fail_at' of sample 13" in text
        assert "the batch of epoch 0, places 8 to 16" in text
        assert loader.state_dict()["place"] == 8


def test_steps_that_cannot_be_sent() -> None:
    pipe = ws.Pipeline(range(20)).step(make, kind="array").step(lambda value: value, name="mine")
    with pytest.raises(ws.NotPicklable, match=r"step 'mine' cannot be sent to worker processes.*start_method='fork'"):
        pipe.loader(workers=2, start_method="spawn")
    with pipe.loader(workers=2, start_method="fork") as loader:
        assert len(list(loader)) == 1


PROMPT = """
import numpy as np, warmstore as ws
def step(value): return np.ones(3)
pipe = ws.Pipeline(range(8)).step(step)
with pipe.loader(None, 4, workers=1, start_method="fork") as loader:
    print(len(list(loader)))
pipe.loader(None, 4, workers=1, start_method="spawn")
"""


def test_steps_of_a_notebook_cannot_be_sent() -> None:
    done = warm.run([sys.executable, "-c", PROMPT], capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout == "2\n"
    assert "NotPicklable: step 'step' cannot be sent to worker processes: no other process can import" in done.stderr


def test_plans_of_other_pipelines(tmp_path: Path) -> None:
    pipe = ws.Pipeline(range(20)).step(make, kind="array").step(change)
    plan = plan_of(pipe, [(2, "memory", "raw")])
    with pytest.raises(ValueError, match="for 20 samples, and the pipeline has 21"):
        ws.Pipeline(range(21)).step(make, kind="array").step(change).loader(plan)
    with pytest.raises(ValueError, match="keeps samples after 2 steps, but 'change' is random"):
        ws.Pipeline(range(20)).step(make, kind="array").step(change, random=True).loader(plan)
    with pytest.raises(ValueError, match="after 2 steps, but the pipeline has 1 steps"):
        ws.Pipeline(range(20)).step(make, kind="array").loader(plan)
    with pytest.raises(
        ValueError, match=r"for the steps \['make', 'change'\], and the pipeline has \['make', 'flip'\]"
    ):
        ws.Pipeline(range(20)).step(make, kind="array").step(flip).loader(plan)
    with pytest.raises(ValueError, match="names no folder"):
        pipe.loader(plan_of(pipe, [(1, "disk", "raw")]))
    with pytest.raises(ValueError, match="seed must be"):
        pipe.loader(plan, seed=-1)
    with pytest.raises(ValueError, match="batch_size must be"):
        pipe.loader(plan, 0)
    with pytest.raises(ValueError, match="workers must be"):
        pipe.loader(plan, workers=-1)


def test_the_programs_random_numbers_stay_its_own() -> None:
    import torch

    torch.manual_seed(3)
    np.random.seed(3)
    wanted = torch.rand(2).tolist(), np.random.rand(2).tolist()
    torch.manual_seed(3)
    np.random.seed(3)
    pipe = ws.Pipeline(range(20)).step(make, kind="array").step(shake, random=True)
    for workers in (0, 2):
        with pipe.loader(batch_size=4, workers=workers) as loader:
            list(loader)
    assert (torch.rand(2).tolist(), np.random.rand(2).tolist()) == wanted


def test_a_transform_sees_batches(tmp_path: Path) -> None:
    pipe = ws.Pipeline(range(20)).step(make, kind="array")

    def doubled(batch: Any, rng: np.random.Generator) -> Any:
        return batch * 2 + rng.random()

    def run(workers: int) -> list[Any]:
        with pipe.loader(None, 8, workers=workers, transform=doubled, random=True) as loader:
            return list(loader)

    for one, other in zip(run(0), run(2), strict=True):
        assert same(one, other)


@pytest.mark.parametrize("workers", [0, 2])
def test_steady_epochs_are_measured(workers: int) -> None:
    pipe = ws.Pipeline(range(20)).step(make, kind="array")
    plan = plan_of(pipe, [(1, "memory", "raw")], [20])
    with pipe.loader(plan, 4, workers=workers) as loader:
        list(loader)
        assert plan.measured == []
        list(loader)
        next(iter(loader))
        loader.load_state_dict(loader.state_dict())
        list(loader)  # the rest of one that was left
        list(loader)
    assert len(plan.measured) == 2
    assert all(0 < seconds < 60 for seconds in plan.measured)
