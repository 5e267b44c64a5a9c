"""Ways to train and to infer: steps, optimizers, modes and parallel processes."""

from __future__ import annotations

import tempfile

import torch
from torch import Tensor, distributed, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from benchmarks.corpus.program import Compile, Step, mlp, program, state, trains


class Classifier(nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.body, self.norm, self.drop = mlp(), nn.BatchNorm1d(16), nn.Dropout(dropout)
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.drop(self.norm(self.body(x))))


@program()
def loss_step(compile: Compile) -> Step:
    """A function of model and batch that returns the loss; backward and optimizer are outside."""
    model, x, labels = Classifier(), torch.randn(8, 16), torch.randint(0, 4, (8,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def loss_of(model: nn.Module, x: Tensor, labels: Tensor) -> Tensor:
        return functional.cross_entropy(model(x), labels, label_smoothing=0.1)

    compiled = compile(loss_of)

    def step() -> object:
        optimizer.zero_grad()
        loss = compiled(model, x, labels)
        loss.backward()
        result = loss.detach(), state(model)
        optimizer.step()
        return result

    return step


@program()
def whole_step(compile: Compile) -> Step:
    """A training step with zero_grad, backward and SGD with momentum inside."""
    model, x, labels = Classifier(), torch.randn(8, 16), torch.randint(0, 4, (8,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def train(x: Tensor, labels: Tensor) -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = functional.cross_entropy(model(x), labels)
        loss.backward()
        optimizer.step()
        return loss.detach()

    compiled = compile(train)
    return lambda: (compiled(x, labels), state(model))


@program(steps=3)
def optimizer_alone(compile: Compile) -> Step:
    """A function that makes the step of an AdamW, compiled beside an eager model."""
    model, x = mlp(), torch.randn(8, 16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    apply = compile(lambda: optimizer.step())

    def step() -> object:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        apply()
        return state(model)

    return step


class Trainer:
    """A trainer as projects write their own."""

    def __init__(self, compile: Compile) -> None:
        self.model = Classifier()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.losses: list[float] = []
        self.train_step = compile(self.training_step)

    def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        x, labels = batch
        return functional.cross_entropy(self.model(x), labels)

    def step(self, batch: tuple[Tensor, Tensor]) -> object:
        self.optimizer.zero_grad()
        loss = self.train_step(batch)
        loss.backward()
        self.losses.append(loss.item())
        result = loss.detach(), state(self.model)
        self.optimizer.step()
        return result


@program(steps=3)
def trainer_class(compile: Compile) -> Step:
    """A trainer whose `training_step`, a bound method, is compiled, and which keeps its losses."""
    trainer, batch = Trainer(compile), (torch.randn(8, 16), torch.randint(0, 4, (8,)))
    return lambda: trainer.step(batch)


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(mlp() for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = x + checkpoint(block, x, use_reentrant=False)
        return x


@program()
def checkpointed(compile: Compile) -> Step:
    """Activation checkpointing of every block, trained."""
    return trains(Checkpointed(), compile, torch.randn(4, 16))


@program(tolerance=(5e-2, 2e-2))
def autocast_outside(compile: Compile) -> Step:
    """A model called within autocast to bfloat16, trained."""
    model, x, labels = Classifier(), torch.randn(8, 16), torch.randint(0, 4, (8,))
    compiled = compile(model)

    def step() -> object:
        model.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = compiled(x)
            loss = functional.cross_entropy(logits, labels)
        loss.backward()
        return logits.detach(), state(model)

    return step


class Mixed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = mlp(), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            x = self.body(x)
        return self.head(x.float())


@program(tolerance=(5e-2, 2e-2))
def autocast_inside(compile: Compile) -> Step:
    """A model that uses autocast to bfloat16 in its forward, trained."""
    return trains(Mixed(), compile, torch.randn(8, 16))


@program(random=True)
def dropout(compile: Compile) -> Step:
    """A model with dropout, trained."""
    return trains(Classifier(0.5), compile, torch.randn(8, 16))


@program(steps=4)
def train_then_eval(compile: Compile) -> Step:
    """A model that is trained, evaluated without gradients, trained again and evaluated again."""
    model, x = Classifier(), torch.randn(8, 16)
    compiled, count = compile(model), 0

    def step() -> object:
        nonlocal count
        count += 1
        compiled.train(count % 2 == 1)
        if model.training:
            model.zero_grad()
            compiled(x).square().mean().backward()
            return state(model)
        with torch.no_grad():
            return compiled(x)

    return step


@program()
def inference_mode(compile: Compile) -> Step:
    """A model in `torch.inference_mode`."""
    model, x = Classifier().eval(), torch.randn(8, 16)
    compiled = compile(model)

    def step() -> object:
        with torch.inference_mode():
            return compiled(x).clone()

    return step


@program()
def no_grad_inside(compile: Compile) -> Step:
    """A teacher under `torch.no_grad` and a student, both in one compiled function."""
    teacher, student, x = mlp().eval(), mlp(), torch.randn(8, 16)

    def distil(x: Tensor) -> Tensor:
        with torch.no_grad():
            aim = teacher(x)
        return functional.mse_loss(student(x), aim)

    compiled = compile(distil)

    def step() -> object:
        student.zero_grad()
        loss = compiled(x)
        loss.backward()
        return loss.detach(), state(student)

    return step


@program(steps=3)
def accumulated_gradients(compile: Compile) -> Step:
    """Gradients of three batches are summed before the optimizer's step."""
    model, batches = Classifier(), torch.randn(3, 8, 16)
    compiled, count = compile(model), 0

    def step() -> object:
        nonlocal count
        compiled(batches[count % 3]).square().mean().backward()
        count += 1
        return state(model)

    return step


@program(steps=3)
def moving_average(compile: Compile) -> Step:
    """A model and the moving average of its weights, brought up to date by a compiled function."""
    model, average, x = mlp(), mlp(), torch.randn(8, 16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    @torch.no_grad()
    def update(averages: list[Tensor], values: list[Tensor], decay: float) -> None:
        for one, value in zip(averages, values, strict=True):
            one.lerp_(value, 1 - decay)

    compiled, count = compile(update), 0

    def step() -> object:
        nonlocal count
        count += 1
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        compiled(list(average.parameters()), list(model.parameters()), min(0.9, count / (count + 1)))
        return state(average)

    return step


@program()
def distributed_data_parallel(compile: Compile) -> Step:
    """DistributedDataParallel around a model, gloo, one process, trained."""
    if not distributed.is_initialized():
        place = tempfile.mkdtemp(prefix="corpus-ddp-")
        distributed.init_process_group("gloo", f"file://{place}/ranks", rank=0, world_size=1)
    return trains(DistributedDataParallel(Classifier()), compile, torch.randn(8, 16))
