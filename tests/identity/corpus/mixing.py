"""Operations on batches of tensors: mixing samples, soft targets, losses, features after a backbone."""

import math
from dataclasses import dataclass
from functools import partial

import torch
from torch.nn import functional

TEMPERATURE = torch.tensor(2.0)
CLASS_WEIGHTS = torch.tensor([1.0, 0.5, 2.0])
REDUCTIONS = {"mean": torch.mean, "sum": torch.sum, "none": lambda losses: losses}
PRECISION = torch.float64


def soft_targets(labels, classes=3, smoothing=0.1):
    hard = functional.one_hot(labels, classes).to(PRECISION)
    return hard * (1 - smoothing) + smoothing / classes


def mixup(batch, labels, generator, alpha=0.4):
    """Each sample mixed with another one; returns images and soft targets."""
    share = torch.rand((), generator=generator, dtype=PRECISION) ** (1 / alpha)
    order = torch.randperm(len(batch), generator=generator)
    targets = soft_targets(labels)
    return share * batch + (1 - share) * batch[order], share * targets + (1 - share) * targets[order]


def box(height, width, share, generator):
    side = math.sqrt(1 - share)
    tall, wide = int(height * side), int(width * side)
    row = int(torch.randint(height - tall + 1, (), generator=generator))
    column = int(torch.randint(width - wide + 1, (), generator=generator))
    return slice(row, row + tall), slice(column, column + wide)


def cutmix(batch, generator, share=0.7):
    rows, columns = box(*batch.shape[-2:], share, generator)
    mixed = batch.clone()
    mixed[..., rows, columns] = batch.flip(0)[..., rows, columns]
    return mixed


def cross_entropy(logits, labels, weights=CLASS_WEIGHTS, reduction="mean"):
    losses = -functional.log_softmax(logits, -1).gather(-1, labels[:, None])[:, 0]
    return REDUCTIONS[reduction](losses * weights[labels])


@torch.no_grad()
def distill(logits, teacher):
    soft = functional.softmax(teacher / TEMPERATURE, -1)
    return -(soft * functional.log_softmax(logits / TEMPERATURE, -1)).sum(-1) * TEMPERATURE**2


def normalize_rows(features, norm=2, floor=1e-6):
    return features / features.norm(norm, dim=-1, keepdim=True).clamp(min=floor)


class Whitening:
    """Fitted rotation of features to unit covariance."""

    shrinkage = 0.1

    def __init__(self, kept=2):
        self.kept = kept

    def fit(self, features):
        self.mean = features.mean(0)
        centered = features - self.mean
        covariance = centered.T @ centered / (len(features) - 1)
        values, vectors = torch.linalg.eigh(covariance + self.shrinkage * torch.eye(len(covariance)))
        largest = vectors[:, -self.kept :]
        self.matrix = largest * largest.sum(0).sign() / values[-self.kept :].sqrt()
        return self

    def __call__(self, features):
        return (features - self.mean) @ self.matrix


@dataclass
class Prototypes:
    """Nearest mean: one stored vector a class, as views on one table."""

    table: torch.Tensor
    metric: str = "cosine"

    @property
    def rows(self):
        return self.table.unbind(0)

    def distance(self, features, row):
        if self.metric == "cosine":
            return 1 - functional.cosine_similarity(features, row[None], dim=-1)
        return (features - row).square().sum(-1)

    def __call__(self, features):
        return torch.stack([self.distance(features, row) for row in self.rows], -1).argmin(-1)


class Projection:
    """Random features of a fixed projection, without gradients; sharpened where they are few."""

    few = 3

    def __init__(self, inputs, outputs, seed=8):
        generator = torch.Generator().manual_seed(seed)
        self.matrix = torch.randn(inputs, outputs, generator=generator)

    @property
    def is_sharp(self):
        return self.matrix.shape[1] < self.few

    @torch.inference_mode()
    def __call__(self, features):
        projected = (features @ self.matrix).cos()
        return projected**3 if self.is_sharp else projected


class Ema:
    """Exponential moving average of what it is called with."""

    def __init__(self, decay=0.9, warmup=True):
        self.decay = decay
        self.warmup = warmup
        self.average = None
        self.steps = 0

    def __call__(self, values):
        self.steps += 1
        decay = min(self.decay, self.steps / (self.steps + 1)) if self.warmup else self.decay
        self.average = values if self.average is None else decay * self.average + (1 - decay) * values
        return self.average * torch.ones_like(values)


def average_of(values, make=Ema, times=3):
    average = make()
    return [average(values * at) for at in range(times)]


def features_of_examples():
    return torch.linspace(-2, 2, 24).view(6, 4).sin() + torch.eye(6, 4)


def entries():
    table = torch.tensor([[1.0, 0.0, 0.5, 0.0], [0.0, 1.0, 0.0, -0.5], [0.3, 0.3, 0.9, 0.1]])
    return {
        "soft_targets": soft_targets,
        "mixup": partial(mixup, alpha=0.5),
        "cutmix": cutmix,
        "cross_entropy": cross_entropy,
        "cross_entropy_none": partial(cross_entropy, weights=torch.ones(3), reduction="none"),
        "distill": distill,
        "normalize_rows": partial(normalize_rows, norm=1),
        "whitening": Whitening().fit(features_of_examples() * 2),
        "prototypes": Prototypes(table),
        "prototypes_squared": Prototypes(table[:, :], metric="squared"),
        "projection": Projection(4, 5),
        "projection_few": Projection(4, 2),
        "average_of": partial(average_of, make=partial(Ema, decay=0.6)),
    }


def examples():
    images = torch.linspace(0, 1, 3 * 2 * 5 * 5, dtype=torch.float64).view(3, 2, 5, 5)
    labels = torch.tensor([2, 0, 1])
    logits = torch.tensor([[0.2, 1.0, -0.5], [2.0, 0.1, 0.3], [-1.0, 0.0, 0.7]])
    features = torch.linspace(-2, 2, 24).view(6, 4).sin()
    return {
        "*": (features,),
        "soft_targets": (labels,),
        "mixup": (images, labels, torch.Generator().manual_seed(4)),
        "cutmix": (images, torch.Generator().manual_seed(4)),
        "cross_entropy": (logits, labels),
        "cross_entropy_none": (logits, labels),
        "distill": (logits, logits.flip(0)),
    }
