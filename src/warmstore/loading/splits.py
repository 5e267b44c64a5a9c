"""Splits and folds of a source.

The part of a sample is a function of the number of samples, the seed, and the labels or groups: the same on every
machine.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from warmstore.loading.samplers.counter_rng import MOST_SEED, Int64, derive_keys
from warmstore.loading.samplers.permutation import permuted
from warmstore.loading.subset import Subset, selection_of
from warmstore.loading.validation import integer
from warmstore.records.format.array_interop import is_jax_array, is_tensor, to_numpy

_KIND = "split"


def split(
    source: Any,
    parts: float | Sequence[float] | Mapping[str, float],
    *,
    seed: int = 0,
    stratify: Any = None,
    groups: Any = None,
    shuffle: bool = True,
) -> Any:
    """Divide a source into parts without a copy. Every sample is in exactly one part.

    Args:
        source: as a `Loader` takes it.
        parts: shares that sum to 1, or numbers of samples that sum to n: in a list, or in a dict by name. A single
            share or number makes two parts.
        seed: of the shuffle.
        stratify: labels [n], numbers, text or other hashable values: each part has its share of each label, within one
            sample.
        groups: labels [n]: no group is in two parts. Sizes are as close to `parts` as the groups allow.
        shuffle: assign samples at random; False assigns consecutive samples to each part.

    Returns:
        A `Subset` for each part, in a list, or in a dict for a dict. Samples of a part keep their order.
        Sizes are shares of n, rounded by largest remainders.

    Raises:
        ValueError: shares that do not sum to 1, numbers that do not sum to n, labels of another length, or both
            `stratify` and `groups`.
    """
    selection = selection_of(source, np.arange)
    n = len(selection.positions)
    shares = list(parts.values()) if isinstance(parts, Mapping) else parts
    sizes, quotas = _sizes(shares, n)
    owner = _owners(n, sizes, quotas, seed, stratify, groups, shuffle)
    subsets = [Subset(selection, owner == part) for part in range(len(sizes))]
    return dict(zip(parts, subsets, strict=True)) if isinstance(parts, Mapping) else subsets


def folds(
    source: Any, k: int, *, seed: int = 0, stratify: Any = None, groups: Any = None
) -> list[tuple[Subset, Subset]]:
    """Divide a source into k parts for cross-validation; the arguments are those of `split`.

    Returns:
        k pairs (train, valid). Every sample is in one `valid`, and in `train` of the other pairs.

    Raises:
        ValueError: k is below 2, or there are fewer than k samples or groups.
    """
    selection = selection_of(source, np.arange)
    n = len(selection.positions)
    k = integer("k", k, 2, 2**31)
    if n < k:
        raise ValueError(f"{k} folds need {k} samples at least; there are {n}")
    share = [n / k] * k
    owner = _owners(n, _rounded(share, n), share, seed, stratify, groups, True)
    empty = k - len(np.unique(owner))
    if empty:
        raise ValueError(f"{k} folds need {k} groups at least; {empty} would be empty")
    return [(Subset(selection, owner != fold), Subset(selection, owner == fold)) for fold in range(k)]


def _sizes(parts: Any, n: int) -> tuple[list[int], list[float]]:
    """The number of samples of each part, and the exact quotas before rounding."""
    single = not isinstance(parts, Sequence | np.ndarray)
    shares = [parts] if single else list(parts)
    if not shares or any(isinstance(share, bool | str) or not math.isfinite(share) for share in shares):
        raise ValueError(f"parts must be shares such as [0.8, 0.2], or numbers of samples; got {parts!r:.80}")
    if any(share <= 0 for share in shares):
        raise ValueError(f"every part must be above zero; got {parts!r:.80}")
    whole = [isinstance(share, int | np.integer) for share in shares]
    if all(whole):
        counts = [int(share) for share in shares]
        if single and counts[0] < n:
            counts.append(n - counts[0])
        if sum(counts) != n:
            raise ValueError(f"the parts {counts} sum to {sum(counts):,}; the source has {n:,} samples")
        return counts, [float(count) for count in counts]
    if any(whole):
        raise ValueError(f"parts must be all shares or all numbers of samples; got {parts!r:.80}")
    if single and shares[0] < 1:
        shares.append(1 - shares[0])
    total = math.fsum(shares)
    if abs(total - 1) > 1e-6:
        raise ValueError(f"the shares {shares} sum to {total:g}, not to 1")
    quotas = [n * float(share) / total for share in shares]
    return _rounded(quotas, n), quotas


def _rounded(quotas: Sequence[float], n: int) -> list[int]:
    """Quotas rounded to whole numbers that sum to n, by largest remainders; the first wins a tie."""
    exact = np.asarray(quotas)
    counts = np.floor(exact + 1e-9).astype(np.int64)
    order = np.argsort(-(exact - counts), kind="stable")
    counts[order[: n - int(counts.sum())]] += 1
    return counts.tolist()  # type: ignore[no-any-return]


def _owners(
    n: int, sizes: list[int], quotas: list[float], seed: int, stratify: Any, groups: Any, shuffle: bool
) -> Int64:
    """The part of each sample: int64 [n]."""
    seed = integer("seed", seed, 0, MOST_SEED)
    if stratify is not None and groups is not None:
        raise ValueError("stratify and groups cannot be had both, as a group may have several labels: pass one of them")
    if groups is not None:
        return _by_group(_codes("groups", groups, n), sizes, seed, shuffle)
    rank = _rank(n, seed, shuffle)
    owner = np.empty(n, np.int64)
    if stratify is None:
        owner[np.argsort(rank)] = np.repeat(np.arange(len(sizes)), sizes)
        return owner
    codes = _codes("stratify", stratify, n)
    counts = np.bincount(codes)
    shares = np.outer(counts, np.asarray(quotas) / max(n, 1))
    table = _rounded_table(shares, counts, np.asarray(sizes), _rank(len(counts), seed, shuffle))
    order = np.lexsort((rank, codes))
    owner[order] = np.repeat(np.tile(np.arange(len(sizes)), len(counts)), table.reshape(-1))
    return owner


def _rank(n: int, seed: int, shuffle: bool) -> Int64:
    """A random permutation of range(n); range(n) without `shuffle`."""
    if not shuffle or not n:
        return np.arange(n, dtype=np.int64)
    return permuted(np.arange(n, dtype=np.uint64), n, derive_keys(_KIND, seed, 0, n)).astype(np.int64)


def _codes(name: str, labels: Any, n: int) -> Int64:
    """Labels as numbers from 0 on, int64 [n]. All that are masked are None, one label."""
    values = to_numpy(labels) if is_tensor(labels) else labels
    if np.ma.is_masked(values):
        values = values.tolist()
    if isinstance(values, list | tuple):  # tensors of equal numbers are different keys of a dict
        values = [to_numpy(value)[()] if is_tensor(value) or is_jax_array(value) else value for value in values]
    if isinstance(values, list | tuple) and not all(isinstance(value, int | float | np.number) for value in values):
        array = np.empty(len(values), object)
        array[:] = values
    else:
        array = np.asarray(values)
    if array.shape != (n,):
        raise ValueError(f"{name} must have a label for each of the {n:,} samples; its shape is {array.shape}")
    if array.dtype.kind == "O":
        known: dict[Any, int] = {}
        return np.fromiter((known.setdefault(label, len(known)) for label in array.tolist()), np.int64, n)
    return np.unique(array, return_inverse=True)[1].astype(np.int64)


def _rounded_table(shares: np.ndarray[Any, Any], rows: Int64, columns: Int64, rank: Int64) -> Int64:
    """Shares rounded to whole numbers, each within one, with given sums of rows and columns: int64 [labels, parts].

    Rows are rounded by largest remainders. Then units move from columns with too many to columns with too few, along a
    shortest path of parts, each within a row that allows it. This is controlled rounding as a flow (Cox, "A
    constructive procedure for unbiased controlled rounding", JASA 1987). Where no table fits, a column is one off.

    Args:
        shares: float [labels, parts].
        rows, columns: the sums.
        rank: int64 [labels], which rows give units first.
    """
    parts = len(columns)
    low = np.floor(shares + 1e-9).astype(np.int64)
    high = np.ceil(shares - 1e-9).astype(np.int64)
    table = low.copy()
    # The j-th largest remainder of a row gets a unit if the row has at least j units to give.
    order = np.argsort(-(shares - low), axis=1, kind="stable")
    given = np.arange(parts) < (rows - low.sum(axis=1))[:, None]
    np.put_along_axis(table, order, np.take_along_axis(table, order, 1) + given, 1)
    by_rank = np.argsort(rank)
    while True:
        surplus = table.sum(axis=0) - columns
        path = _path(surplus, table, low, high)
        if path is None:
            return table
        steps = list(itertools.pairwise(path))
        # A row is never in two adjacent steps: a part of a row can either take a unit or give one.
        free = [
            by_rank[(table[by_rank, a] > low[by_rank, a]) & (table[by_rank, b] < high[by_rank, b])] for a, b in steps
        ]
        units = min(int(surplus[path[0]]), int(-surplus[path[-1]]), *map(len, free))
        for (a, b), movable in zip(steps, free, strict=True):
            table[movable[:units], a] -= 1
            table[movable[:units], b] += 1


def _path(surplus: Int64, table: Int64, low: Int64, high: Int64) -> list[int] | None:
    """The shortest path of a unit from a part with too many samples to a part with too few, by breadth-first search."""
    parts = len(surplus)
    gives, takes = table > low, table < high
    before = {int(part): -1 for part in np.flatnonzero(surplus > 0)}
    border = list(before)
    while border:
        reached: list[int] = []
        for part in border:
            for other in range(parts):
                if other in before or not (gives[:, part] & takes[:, other]).any():
                    continue
                before[other] = part
                if surplus[other] < 0:
                    path = [other]
                    while before[path[-1]] >= 0:
                        path.append(before[path[-1]])
                    return path[::-1]
                reached.append(other)
        border = reached
    return None


def _by_group(codes: Int64, sizes: list[int], seed: int, shuffle: bool) -> Int64:
    """The part of each sample, int64 [n]: groups in order of size, the largest first, go to the part that lacks most.

    This is longest processing time first (Graham, "Bounds on multiprocessing timing anomalies", SIAM J. Appl. Math.
    1969), for all groups of one size at once.
    """
    counts = np.bincount(codes)
    rank = _rank(len(counts), seed, shuffle)
    lacking = np.asarray(sizes, np.int64).copy()
    owner = np.empty(len(counts), np.int64)
    for size in np.unique(counts)[::-1].tolist():
        groups = np.flatnonzero(counts == size)
        groups = groups[np.argsort(rank[groups])]
        # lacks[p, j]: what part p lacks before its j-th group of this size. The largest numbers get the groups.
        most = len(groups)
        lacks = lacking[:, None] - size * np.arange(most)
        chosen = np.argsort(-lacks, axis=None, kind="stable")[:most]
        received = np.bincount(chosen // most, minlength=len(sizes))
        owner[groups] = np.repeat(np.arange(len(sizes)), received)
        lacking -= size * received
    return owner[codes]
