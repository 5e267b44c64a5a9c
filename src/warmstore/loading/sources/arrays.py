"""Arrays in memory, tensors and .npy files as sources."""

from pathlib import Path
from typing import Any, final

import numpy as np

from warmstore.errors import BadSource
from warmstore.loading.samplers.counter_rng import Int64
from warmstore.loading.source import Source
from warmstore.loading.values.content_hash import hash_of_rows
from warmstore.loading.values.ownership import owned
from warmstore.records.format.array_interop import to_numpy
from warmstore.storage.cached_property import cached_property


class ArraySource(Source):
    """The rows of an array, in memory or memory-mapped.

    Args:
        array: [n, ...].
        copy: copy the objects of an object array; numbers are always copied.

    Raises:
        BadSource: an array without dimensions.
    """

    def __init__(self, array: np.ndarray[Any, Any], *, copy: bool = True) -> None:
        if not array.ndim:
            raise BadSource(f"an array without dimensions has no samples: {array!r:.80}")
        self._array = array
        self._copy = copy
        self.sample_bytes = array.itemsize * int(np.prod(array.shape[1:]))

    def __len__(self) -> int:
        return len(self._array)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the array."""
        return self._array.dtype  # type: ignore[no-any-return]

    @cached_property
    def identity(self) -> Any:
        """The dtype, the shape, and a hash of some rows."""
        return _identity(self, self._array.dtype, self._array.shape)

    def read(self, positions: Int64) -> np.ndarray[Any, Any]:
        rows = self._array.take(positions, axis=0)
        return owned(rows) if self._copy else rows


@final
class TensorSource(Source):
    """The rows of a tensor on the CPU.

    Every read makes a new array of the tensor: torch moves the memory of a tensor that is sent to another process.
    """

    def __init__(self, tensor: Any) -> None:
        if not tensor.ndim:
            raise BadSource(f"a tensor without dimensions has no samples: {tensor!r:.80}")
        self._tensor = tensor.detach()
        self.sample_bytes = tensor.element_size() * (tensor[:1].numel())

    def __len__(self) -> int:
        return len(self._tensor)

    @cached_property
    def identity(self) -> Any:
        """Equal to the identity of an array with the same rows."""
        return _identity(self, to_numpy(self._tensor[:0]).dtype, tuple(self._tensor.shape))

    def read(self, positions: Int64) -> np.ndarray[Any, Any]:
        return to_numpy(self._tensor).take(positions, axis=0)


@final
class NpySource(ArraySource):
    """The rows of a .npy file, memory-mapped. Pickled as its path."""

    def __init__(self, path: Path) -> None:
        try:
            array = np.load(path, mmap_mode="r", allow_pickle=False)
        except (ValueError, EOFError) as error:
            raise BadSource(f"{path} cannot be read as a .npy file: {error}") from None
        super().__init__(np.asarray(array))
        self.path = path

    def __identity__(self) -> Any:
        return self.path.absolute()

    def __reduce__(self) -> Any:
        return NpySource, (self.path.absolute(),)


def _identity(source: Source, dtype: np.dtype[Any], shape: tuple[int, ...]) -> dict[str, Any]:
    return {"kind": "array", "dtype": str(dtype), "shape": list(shape), "hash": hash_of_rows(source)}
