"""Figures of caches in the logs of real trainers and trackers."""

import logging
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.faults.children import in_child
from tests.slow import thinned
from torch import nn

import warmstore as ws
from warmstore.callbacks import CacheMeter, TensorBoardLogger, WandbLogger


class Double(nn.Module):
    def forward(self, x: Any) -> Any:
        return x * 2


def look_up(module: Any, count: int = 8) -> Any:
    return module(torch.ones(count, 4), cache_ids=range(count))


def tripled(value: int) -> Any:
    """Costs so much more than reading its value back that every plan keeps it."""
    values = torch.full((64,), 3.0 * value)
    for _ in range(100):
        values = values.exp().sin()
    return values


def shifted(values: Any) -> Any:
    return values + 1


def planned() -> tuple[ws.Pipeline, ws.Plan]:
    pipe = ws.Pipeline(list(range(200))).step(tripled).step(shifted)
    profile = pipe.profile(samples=20, seconds=1, max_workers=0)
    return pipe, pipe.plan(memory="1MB", workers=0, profile=profile)


@pytest.fixture
def module(tmp_path: Path) -> Any:
    with ws.FeatureCache(tmp_path / "cache", "double") as cache:
        yield ws.CachedModule(Double(), cache)


class TestMeter:
    def test_figures_are_of_the_time_since_the_last_call(self, module: Any) -> None:
        meter = CacheMeter(module.cache)
        assert meter.figures() == {}
        look_up(module, 6)
        look_up(module)
        first = meter.figures()
        assert (first["warmstore/hits"], first["warmstore/misses"]) == (6, 8)
        assert first["warmstore/hit_rate"] == pytest.approx(6 / 14)
        assert first["warmstore/bytes_read"] == 6 * 16
        assert first["warmstore/computed_seconds"] > 0
        look_up(module)
        second = meter.figures()
        assert (second["warmstore/hits"], second["warmstore/misses"], second["warmstore/hit_rate"]) == (8, 0, 1)
        assert second["warmstore/seconds_saved"] > 0
        total = first["warmstore/seconds_saved"] + second["warmstore/seconds_saved"]
        assert second["warmstore/total_seconds_saved"] == pytest.approx(total)
        assert meter.figures() == {}
        assert all(isinstance(value, float) for value in second.values())

    def test_all_open_caches_and_functions_also_those_opened_later(self, module: Any, tmp_path: Path) -> None:
        meter = CacheMeter()
        f = ws.cached(tmp_path / "functions")(lambda x: x + 1)
        f(1)
        f(1)
        look_up(module)
        found = meter.figures()
        assert (found["warmstore/hits"], found["warmstore/misses"]) == (1, 9)
        names = {name for name in found if name.count("/") > 1}
        assert {"warmstore/double/hit_rate", f"warmstore/{f.cache.name}/seconds_saved"} <= names
        assert len(names) == 4
        f.cache.close()

    def test_versions_beside_a_cache_count_once(self, tmp_path: Path) -> None:
        with ws.FeatureCache(tmp_path, "id", versions="new") as cache:
            meter = CacheMeter()
            for scale in (1.0, 2.0):
                linear = nn.Linear(4, 2).requires_grad_(False)
                linear.weight.fill_(scale)
                look_up(ws.CachedModule(linear, cache))
            assert meter.figures()["warmstore/misses"] == 16

    def test_what_can_be_given(self, module: Any, tmp_path: Path) -> None:
        f = ws.cached(tmp_path / "functions")(lambda x: x + 1)
        pipe, plan = planned()
        with pipe.loader(plan, workers=0) as loader, pipe.loader(workers=0) as unplanned:
            for given in (module, module.cache, [module.cache], [module, f], f, f.cache, plan, loader, [plan, f]):
                CacheMeter(given)
            for wrong in (3, [3], "cache", pipe, unplanned):
                with pytest.raises(TypeError, match="caches are FeatureCache objects"):
                    CacheMeter(wrong)

    def test_a_cache_that_was_closed_meanwhile_counts_once(self, tmp_path: Path) -> None:
        f = ws.cached(tmp_path)(lambda x: x + 1)
        meter = CacheMeter()
        f(1)
        assert meter.figures()["warmstore/misses"] == 1
        f.cache.close()
        assert meter.figures() == {}
        f(1)
        again = meter.figures()
        assert (again["warmstore/hits"], again["warmstore/misses"]) == (1, 0)
        f.cache.close()

    @pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
    @pytest.mark.parametrize("is_given", [True, False])
    def test_epochs_of_a_plan(self, is_given: bool, workers: int) -> None:
        pipe, plan = planned()
        with pipe.loader(plan, batch_size=20, workers=workers) as loader:
            meter = CacheMeter(plan if is_given else None)
            found = []
            for _ in range(3):
                assert sum(len(batch) for batch in loader) == 200
                found.append(meter.figures())
        assert [(each["warmstore/hits"], each["warmstore/misses"]) for each in found] == [(0, 200), (200, 0), (200, 0)]
        assert [each["warmstore/hit_rate"] for each in found] == [0, 1, 1]
        assert found[0]["warmstore/computed_seconds"] > found[1]["warmstore/computed_seconds"] >= 0
        saved = [each["warmstore/seconds_saved"] for each in found]
        assert found[2]["warmstore/total_seconds_saved"] == pytest.approx(sum(saved))

    def test_two_caches_of_one_id_keep_their_names(self, module: Any, tmp_path: Path) -> None:
        with ws.FeatureCache(tmp_path / "other", "double") as cache:
            other, meter = ws.CachedModule(Double(), cache), CacheMeter([module, cache, f := ws.cached(tmp_path)(abs)])
            found = []
            for used in (module, other, module):
                f(1)
                look_up(used)
                found.append({name for name in meter.figures() if "double" in name and "rate" in name})
            f.cache.close()
        first, second = "warmstore/double/hit_rate", "warmstore/double-2/hit_rate"
        assert found == [{first}, {second}, {first}]

    def test_nothing_is_saved_without_a_hit(self, tmp_path: Path) -> None:
        """Calls that are faster than those before lower the mean."""
        f = ws.cached(tmp_path)(lambda x: x + 1)
        meter = CacheMeter(f)
        f.cache._usage.add(100.0, 1)
        f(1)
        f(1)
        first = meter.figures()["warmstore/seconds_saved"]
        assert first == pytest.approx(50, rel=0.1)
        for number in range(2, 30):
            f(number)
        last = meter.figures()
        assert (last["warmstore/hits"], last["warmstore/seconds_saved"]) == (0, 0)
        assert last["warmstore/total_seconds_saved"] == first
        f.cache.close()

    @pytest.mark.forks
    def test_a_forked_child_counts_its_own(self, module: Any, tmp_path: Path) -> None:
        f = ws.cached(tmp_path)(lambda x: x + 1)
        pipe, plan = planned()
        meter = CacheMeter([module, f, plan])
        with pipe.loader(plan, batch_size=20, workers=0) as loader:
            for _ in loader:
                pass
        look_up(module)
        f(1)
        module.cache.flush()
        f.cache.flush()

        def child(say: Any) -> None:
            look_up(module, 2)
            f(1)
            say(meter.figures())
            f.cache.close()

        (figures,) = in_child(child).said
        assert (figures["warmstore/hits"], figures["warmstore/misses"]) == (3, 0)
        assert meter.figures()["warmstore/misses"] == 209
        f.cache.close()
        assert (f.cache.stats().hits, f.cache._usage.in_all().hits, f.cache._usage.in_all().misses) == (0, 1, 1)

    def test_the_name_of_a_plan_is_that_of_its_steps(self, module: Any) -> None:
        pipe, plan = planned()
        with pipe.loader(plan, batch_size=20, workers=0) as loader:
            meter = CacheMeter([plan, module])
            for _ in loader:
                pass
            look_up(module)
        assert {"warmstore/tripled-shifted/hit_rate", "warmstore/double/hit_rate"} <= set(meter.figures())


class TestTrackers:
    def test_an_object_with_log(self, module: Any, caplog: Any) -> None:
        class Run:
            def __init__(self) -> None:
                self.logged: list[Any] = []

            def log(self, figures: dict[str, float], step: int | None = None) -> None:
                if step == 3:
                    raise ConnectionError("no network")
                self.logged.append((figures, step))

        run = Run()
        logger = WandbLogger(run, module)
        assert logger.log(step=0) == {}
        for step in (1, None, 3):
            look_up(module)
            assert logger.log(step=step)["warmstore/hits"] + 8 * (step == 1) == 8
        assert [step for _, step in run.logged] == [1, None]
        assert "no network" in caplog.text
        with pytest.raises(TypeError, match=r"wandb.init\(\)"):
            WandbLogger(None)

    @pytest.mark.slow
    def test_wandb_offline(self, module: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        wandb = pytest.importorskip("wandb")
        monkeypatch.setenv("WANDB_SILENT", "true")
        run = wandb.init(mode="offline", dir=tmp_path, project="warmstore")
        look_up(module)
        logger = WandbLogger(run, module)
        look_up(module)
        assert logger.log(step=1)["warmstore/hits"] == 8
        look_up(module, 4)
        assert logger.log(step=2)["warmstore/hits"] == 4
        assert run.summary["warmstore/hits"] == 8  # of the last step that has ended
        run.finish()

    def test_tensorboard_reads_the_figures_back(self, module: Any, tmp_path: Path) -> None:
        pytest.importorskip("tensorboard")
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
        from torch.utils.tensorboard import SummaryWriter

        with SummaryWriter(tmp_path / "runs") as writer:
            logger = TensorBoardLogger(writer, module)
            for epoch in range(3):
                look_up(module)
                logger.log(step=epoch)
        events = EventAccumulator(str(tmp_path / "runs"))
        events.Reload()
        assert [(event.step, event.value) for event in events.Scalars("warmstore/hit_rate")] == [(0, 0), (1, 1), (2, 1)]
        assert [event.value for event in events.Scalars("warmstore/misses")] == [8, 0, 0]
        with pytest.raises(TypeError, match="add_scalar"):
            TensorBoardLogger(tmp_path)


def test_lightning(module: Any, tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning.pytorch")
    from lightning.pytorch.loggers import CSVLogger

    from warmstore.callbacks import LightningCallback

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

    class Head(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(4, 1)

        def training_step(self, batch: Any, number: int) -> Any:
            ids = batch.tolist()
            return self.head(module(torch.ones(len(ids), 4), cache_ids=ids)).mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.1)

    seen: list[Any] = []

    class Watch(lightning.Callback):  # type: ignore[misc]
        def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            seen.append(trainer.callback_metrics["warmstore/hit_rate"].item())

    trainer = lightning.Trainer(
        max_epochs=3,
        accelerator="cpu",
        logger=CSVLogger(tmp_path),
        callbacks=[LightningCallback(module), Watch()],
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Lightning, on the number of workers
        trainer.fit(Head(), torch.utils.data.DataLoader(torch.arange(8), batch_size=4))
    assert seen == [0, 1, 1]
    (metrics,) = tmp_path.rglob("metrics.csv")
    header, *rows = [line.split(",") for line in metrics.read_text().splitlines()]
    rates = [row[header.index("warmstore/hit_rate")] for row in rows]
    assert [float(rate) for rate in rates if rate] == [0, 1, 1]
    with pytest.raises(ValueError, match="every_n_steps"):
        LightningCallback(every_n_steps=0)


def test_lightning_counts_steps_of_the_optimizer(module: Any, tmp_path: Path) -> None:
    pytest.importorskip("lightning.pytorch")
    from warmstore.callbacks import LightningCallback

    class Logs:
        steps: list[int] = []  # noqa: RUF012

        def log_metrics(self, figures: Any, step: int) -> None:
            self.steps.append(step)

    trainer = SimpleNamespace(global_step=0, callback_metrics={}, loggers=[Logs()])
    callback = LightningCallback(module, every_n_steps=2)
    callback.on_fit_start(trainer, None)
    callback.on_train_start(trainer, None)
    for batch in range(1, 21):  # four batches a step
        look_up(module)
        trainer.global_step = batch // 4
        callback.on_train_batch_end(trainer, None)
    assert Logs.steps == [2, 4]
    trainer.global_step = 0
    callback.on_fit_start(trainer, None)
    trainer.global_step = 8  # a checkpoint is loaded
    callback.on_train_start(trainer, None)
    for step in (9, 10, 11):
        look_up(module)
        trainer.global_step = step
        callback.on_train_batch_end(trainer, None)
    assert Logs.steps == [2, 4, 10]


@pytest.mark.parametrize("first", thinned(2, [False, True]))
def test_transformers(module: Any, tmp_path: Path, first: bool) -> None:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    from warmstore.callbacks import TrainerCallback

    class Head(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(4, 1)

        def forward(self, ids: Any) -> Any:
            return {"loss": self.head(module(torch.ones(len(ids), 4), cache_ids=ids)).mean()}

    class Reporter(transformers.TrainerCallback):  # type: ignore[misc]
        seen: list[Any] = []  # noqa: RUF012

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **rest: Any) -> None:
            self.seen.append(dict(logs))

    Reporter.seen = []
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path),
        num_train_epochs=2,
        per_device_train_batch_size=4,
        logging_steps=2,
        report_to=[],
        use_cpu=True,
        save_strategy="no",
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
    data = [{"ids": number} for number in range(8)]
    callbacks = [Reporter()] if first else [TrainerCallback(module)]
    trainer = transformers.Trainer(Head(), arguments, train_dataset=data, callbacks=callbacks)
    trainer.remove_callback(transformers.PrinterCallback)
    if first:
        TrainerCallback.add_to(trainer, module)
    trainer.train()
    rates = [logs["warmstore/hit_rate"] for logs in trainer.state.log_history if "warmstore/hit_rate" in logs]
    assert rates == [0, 1]
    if first:
        assert [logs["warmstore/hit_rate"] for logs in Reporter.seen if "loss" in logs] == [0, 1]
    metrics = trainer.evaluate(data)
    assert "eval_runtime" in metrics
    assert not [name for name in metrics if name.startswith("warmstore/")]
    assert trainer.state.log_history[-1]["warmstore/hit_rate"] == 1


def test_without_a_framework_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    for package, name in (("lightning", "LightningCallback"), ("transformers", "TrainerCallback")):
        for loaded in [each for each in sys.modules if each.partition(".")[0] == package]:
            monkeypatch.delitem(sys.modules, loaded)
        monkeypatch.setitem(sys.modules, package, None)
        for module in ("lightning_callback", "trainer_callback"):
            monkeypatch.delitem(sys.modules, f"warmstore.callbacks.{module}", raising=False)
        with pytest.raises(ws.NotInstalled, match=rf"{name} needs {package}: pip install 'warmstore\[trainers\]'"):
            getattr(__import__("warmstore.callbacks").callbacks, name)
