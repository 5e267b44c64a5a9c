"""First-fit packing of samples into rows of fixed length, for `RowBudget` and `PackRows`."""

from collections.abc import Sequence


def first_fit(lengths: Sequence[int], rows: int, length: int, start: int = 0, most: int | None = None) -> list[int]:
    """The row of each sample from `start` on, up to the first sample that fits into no row.

    Every sample goes into the first row with enough room. First-fit takes at most 1.7 times the rows of the best
    packing: Johnson, Demers, Ullman, Garey, Graham, "Worst-case performance bounds for simple one-dimensional packing
    algorithms" (SIAM J. Comput. 3, 1974). A tournament tree of free room finds a row in O(log rows). A sample of length
    0 goes into row 0.

    Args:
        lengths: of the samples, none negative.
        rows: the number of rows, at least 1.
        length: of each row.
        start: the first sample to place.
        most: the most samples to place; None for all.
    """
    leaves = 1 << (rows - 1).bit_length()
    # free[k] is the most room of a row below node k. The children of k are 2 * k and 2 * k + 1; row r is leaves + r.
    free = [-1]
    for level in range(leaves.bit_length()):
        nodes = 1 << level
        present = -(-rows * nodes // leaves)  # those with a row below them
        free += [length] * present + [-1] * (nodes - present)
    placed: list[int] = []
    stop = len(lengths) if most is None else min(len(lengths), start + most)
    for at in range(start, stop):
        wanted = lengths[at]
        if wanted > free[1]:
            break
        node = 1
        while node < leaves:
            node *= 2
            if free[node] < wanted:
                node += 1
        placed.append(node - leaves)
        left = free[node] - wanted
        free[node] = left
        while node > 1:
            sibling = free[node ^ 1]
            if sibling > left:
                left = sibling
            node >>= 1
            if free[node] == left:
                break
            free[node] = left
    return placed
