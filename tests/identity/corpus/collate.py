"""Batches from lists of samples: padding, packing, bucketing and masking, as torch tensors."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter
from typing import NamedTuple

import numpy as np
import torch
from torch.nn.utils.rnn import pack_sequence

IGNORED = -100
PAD = {"ids": 0, "labels": IGNORED, "positions": 0}
_DTYPES = {"ids": torch.int32, "labels": torch.int64, "weights": torch.float64}


class Batch(NamedTuple):
    values: torch.Tensor
    lengths: torch.Tensor

    @property
    def mask(self):
        return torch.arange(self.values.shape[1])[None] < self.lengths[:, None]


def round_up(length, multiple):
    return -(-length // multiple) * multiple


def pad(sequences, value=0, multiple=1, left=False):
    """Sequences of any lengths as one tensor of (batch, length)."""
    longest = round_up(max(map(len, sequences)), multiple)
    rows = []
    for sequence in sequences:
        room = [value] * (longest - len(sequence))
        rows.append(room + list(sequence) if left else list(sequence) + room)
    return torch.from_numpy(np.array(rows))


def pad_with_lengths(samples, key="ids"):
    sequences = [sample[key] for sample in samples]
    return Batch(pad(sequences, PAD[key]), torch.tensor([len(sequence) for sequence in sequences]))


def pad_with_mask(samples):
    batch = pad_with_lengths(samples)
    return {"ids": batch.values, "mask": batch.mask.long()}


def collate(samples):
    """Like torch's default: dicts of batches, tuples of batches, stacked numbers."""
    first = samples[0]
    if isinstance(first, Mapping):
        return {key: collate([sample[key] for sample in samples]) for key in first}
    if isinstance(first, (list, tuple)) and any(len(sample) != len(first) for sample in samples):
        return pad(samples, IGNORED)
    if isinstance(first, (str, bytes)):
        return samples
    return torch.as_tensor(np.asarray(samples))


@dataclass
class Collator:
    """Pads each field with its own value and gives it its dtype."""

    multiple: int = 4
    left: bool = False
    pad: dict = field(default_factory=lambda: dict(PAD))
    dtypes: dict = field(default_factory=dict)

    def __post_init__(self):
        self.dtypes = {**_DTYPES, **self.dtypes}

    def pad_value(self, name):
        return self.pad.get(name, 0)

    def __call__(self, samples):
        batch = {}
        for name in samples[0]:
            values = pad([sample[name] for sample in samples], self.pad_value(name), self.multiple, self.left)
            batch[name] = values.to(self.dtypes.get(name, values.dtype))
        return batch


class CollatorWithPositions(Collator):
    """Adds positions that start at `first`."""

    first = 1

    def __call__(self, samples):
        batch = super().__call__(samples)
        length = batch["ids"].shape[1]
        batch["positions"] = torch.arange(self.first, self.first + length).expand(len(samples), -1)
        return batch


def pack(samples, order=itemgetter("ids")):
    """A packed sequence, longest first."""
    sequences = sorted(map(order, samples), key=len, reverse=True)
    packed = pack_sequence([torch.tensor(sequence) for sequence in sequences])
    return {"data": packed.data, "sizes": packed.batch_sizes}


def first_fit(samples, capacity=6, separator=1):
    """Several sequences in a row of `capacity` tokens, with numbers of their sequence and positions inside it."""
    rows = []
    for sample in samples:
        ids = [*sample["ids"], separator][:capacity]
        for row in rows:
            if len(row[0]) + len(ids) <= capacity:
                break
        else:
            row = ([], [], [])
            rows.append(row)
        number = row[1][-1] + 1 if row[1] else 1
        row[0].extend(ids)
        row[1].extend([number] * len(ids))
        row[2].extend(range(len(ids)))
    return {name: pad([row[at] for row in rows]) for at, name in enumerate(("ids", "segments", "positions"))}


def buckets(samples, edges=(3, 5)):
    """Indices of samples by the bucket their length falls in."""
    found = {}
    for at, sample in enumerate(samples):
        bucket = sum(len(sample["ids"]) >= edge for edge in edges)
        found.setdefault(bucket, []).append(at)
    return dict(sorted(found.items()))


def masker(vocabulary, mask_id=3, share=0.4, special=frozenset((0, 1))):
    """A collator for masked language modelling."""
    replaced, random = 0.8, 0.5

    def choose(values, rng):
        draws = rng.random(values.shape)
        protected = np.isin(values, list(special))
        return (draws < share) & ~protected

    def mask(samples, rng):
        values = pad([sample["ids"] for sample in samples]).numpy()
        chosen = choose(values, rng)
        labels = np.where(chosen, values, IGNORED)
        hidden = chosen & (rng.random(values.shape) < replaced)
        swapped = chosen & ~hidden & (rng.random(values.shape) < random)
        values = np.where(hidden, mask_id, values)
        values = np.where(swapped, rng.integers(2, vocabulary, values.shape), values)
        return torch.from_numpy(values), torch.from_numpy(labels)

    return mask


def entries():
    return {
        "pad_with_lengths": pad_with_lengths,
        "pad_labels": partial(pad_with_lengths, key="labels"),
        "pad_with_mask": pad_with_mask,
        "collate": collate,
        "collator": Collator(),
        "collator_left": Collator(multiple=3, left=True, dtypes={"ids": torch.int16}),
        "collator_with_positions": CollatorWithPositions(multiple=1),
        "pack": pack,
        "pack_labels": partial(pack, order=itemgetter("labels")),
        "first_fit": first_fit,
        "buckets": buckets,
        "masker": masker(vocabulary=20),
    }


def examples():
    samples = [{"ids": list(range(2, 2 + n)), "labels": [n] * (n - 1)} for n in (4, 2, 5, 2, 3)]
    return {"*": (samples,), "masker": (samples, np.random.default_rng(11))}
