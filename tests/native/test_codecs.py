"""Many compressed records in one call of the floor: what Python's libraries have written, whole or damaged."""

import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.slow import either

from warmstore._native import is_compiled
from warmstore.errors import Damaged
from warmstore.records.format import codec_libraries
from warmstore.records.format.codecs import Codec, train_dictionary

VALUES = [f'{{"id": {number}, "label": "class {number % 7}"}}'.encode() * (number % 5) for number in range(400)]
DICTIONARY = train_dictionary(VALUES, 2000)
kinds = pytest.mark.parametrize(
    ("kind", "dictionary"), [("zstd", None), ("zstd:1", DICTIONARY), ("lz4", None)], ids=["zstd", "dictionary", "lz4"]
)


def _placed(values: list[bytes]) -> tuple[Any, Any, Any]:
    lengths = np.array([len(value) for value in values], np.int64)
    return np.frombuffer(b"".join(values) + b"-", np.uint8), np.cumsum(lengths) - lengths, lengths


def _both(kind: str, dictionary: bytes | None) -> tuple[Codec, Codec]:
    """One that goes through the floor, and one that does not."""
    native, plain = Codec(kind, dictionary), Codec(kind, dictionary)
    plain._functions = None
    return native, plain


@pytest.mark.skipif(not is_compiled, reason="the floor was not compiled here")
def test_there_are_libraries_wherever_warmstore_is_installed() -> None:
    for kind in ("zstd", "lz4"):
        assert codec_libraries.functions_of(kind, None) is not None
    assert codec_libraries.functions_of("deflate", None) is None


@kinds
def test_values_are_what_they_were(kind: str, dictionary: bytes | None) -> None:
    for codec in _both(kind, dictionary):
        for some in (VALUES, VALUES[:1], VALUES[1:2], [], [b""] * 3, [bytes(1 << 20)] * 5):
            data, offsets = codec.decompress(*_placed([one and codec.compress([one])[0] for one in some]))
            assert bytes(data) == b"".join(some)
            assert offsets.tolist() == np.cumsum([0, *map(len, some)]).tolist()


@kinds
@settings(max_examples=either(75, 150))
@given(data=st.data())
def test_damaged_records_are_refused_or_come_as_python_has_them(kind: str, dictionary: bytes | None, data: Any) -> None:
    native, plain = _both(kind, dictionary)
    values = native.compress([one for one in VALUES[:40] if one])
    which = data.draw(st.integers(0, len(values) - 1))
    broken = bytearray(values[which])
    for _ in range(data.draw(st.integers(1, 3))):
        broken[data.draw(st.integers(0, min(30, len(broken) - 1)))] = data.draw(st.integers(0, 255))
    values[which] = bytes(broken[: data.draw(st.integers(1, len(broken)))])
    place = _placed(values)
    most = 1 << 24  # a header may speak of gigabytes

    def result(codec: Codec) -> Any:
        def allocate(length: int) -> Any:
            if length > most:
                raise Damaged("too long")
            return np.zeros(length, np.uint8)

        try:
            found, offsets = codec.decompress(*place, allocate)
        except Damaged:
            return None
        return found.tobytes(), offsets.tolist()

    found = result(native)
    if found is not None:
        assert found == result(plain)


@kinds
def test_threads_may_share_a_codec(kind: str, dictionary: bytes | None) -> None:
    codec = Codec(kind, dictionary)
    place = _placed([one and codec.compress([one])[0] for one in VALUES * 40])
    wrong = []

    def work() -> None:
        for _ in range(5):
            if bytes(codec.decompress(*place)[0]) != b"".join(VALUES * 40):
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.skipif(not is_compiled, reason="the floor was not compiled here")
def test_places_outside_of_memory_are_refused() -> None:
    codec = Codec("zstd", None)
    memory, starts, _ = _placed(codec.compress([b"abc"]))
    for first, length in ((-1, 5), (0, len(memory) + 1), (len(memory), 1), (0, -1)):
        with pytest.raises(IndexError):
            codec.decompress(memory, starts + first, np.array([length]))


def test_without_a_library_python_does_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec_libraries, "_paths", lambda kind: iter(["/nowhere/libzstd.so"]))
    codec_libraries._library.cache_clear()
    codec = Codec("zstd:2", None)
    codec_libraries._library.cache_clear()
    assert codec._functions is None
    data, _ = codec.decompress(*_placed(codec.compress([b"abc" * 100])))
    assert bytes(data) == b"abc" * 100
