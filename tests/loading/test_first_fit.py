"""First-fit places every sample in the first row that has room."""

from hypothesis import example, given
from hypothesis import strategies as st

from warmstore.loading.first_fit import first_fit


def by_scanning(lengths: list[int], rows: int, length: int) -> list[int]:
    """The rule, row by row."""
    free = [length] * rows
    placed = []
    for wanted in lengths:
        row = next((row for row in range(rows) if free[row] >= wanted), None)
        if row is None:
            break
        free[row] -= wanted
        placed.append(row)
    return placed


@given(st.lists(st.integers(0, 12), max_size=60), st.integers(1, 20), st.integers(1, 20))
@example([7] * 9, 5, 12)  # rows that are no power of two, all of them full
@example([13], 5, 12)
def test_it_is_what_scanning_finds(lengths: list[int], rows: int, length: int) -> None:
    assert first_fit(lengths, rows, length) == by_scanning(lengths, rows, length)


@given(st.lists(st.integers(0, 5), max_size=30), st.integers(0, 30), st.integers(0, 30))
def test_it_starts_and_stops_where_it_is_told(lengths: list[int], start: int, most: int) -> None:
    found = first_fit(lengths, 3, 5, start, most)
    assert found == by_scanning(lengths[start : start + most], 3, 5)


def test_a_known_case() -> None:
    assert first_fit([6, 7, 5, 2, 0, 3, 9], 3, 10) == [0, 1, 2, 0, 0, 1]
    assert first_fit([6, 7, 5, 2, 0, 3, 9], 4, 10) == [0, 1, 2, 0, 0, 1, 3]
    assert first_fit([11], 4, 10) == []
