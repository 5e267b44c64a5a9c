"""Transfer of batches: to torch tensors, JAX arrays or a device, ahead of their use.

Transfers map over the leaves of a batch. Text, bytes, numbers and JSON values stay unchanged.
"""

import functools
import sys
from abc import ABC, abstractmethod
from typing import Any

from warmstore.errors import SchemaMismatch
from warmstore.extras import imported
from warmstore.records.format.array_interop import is_tensor, on_device
from warmstore.records.framework_arrays import host_array_of, jax_array_of, mapped, tensor_of


class DeviceTransfer(ABC):
    """A transfer in two steps. ahead: whether `send` should run in a worker thread."""

    ahead = False

    @abstractmethod
    def send(self, batch: Any) -> Any:
        """Start the transfer of a batch, in the thread that built it."""

    def receive(self, sent: Any) -> Any:
        """Finish the transfer, in the caller's thread just before the batch is handed out."""
        return sent


def transfer_to(to: Any) -> DeviceTransfer | None:
    """The transfer for a `to` argument; None for "numpy".

    Args:
        to: "numpy", "torch", "jax", a torch device or its name such as "cuda:0", or a JAX device or sharding.

    Raises:
        NotInstalled: torch or JAX is needed and not installed.
        ValueError: any other value.
    """
    if to == "numpy" or to is None:
        return None
    if isinstance(to, str):
        if to == "jax":
            return ToJax(None)
        torch = imported("torch")
        if to == "torch":
            return ToTorch()
        try:
            return _to_device(torch.device(to))
        except RuntimeError as error:
            raise ValueError(
                f"to must be 'numpy', 'torch', 'jax' or a device such as 'cuda:0'; got {to!r}: {error}"
            ) from None
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(to, torch.device):
        return _to_device(to)
    if type(to).__module__.split(".")[0] in ("jax", "jaxlib"):
        return ToJax(to)
    raise ValueError(f"to must be 'numpy', 'torch', 'jax', a device or a JAX sharding; got {to!r:.80}")


class ToTorch(DeviceTransfer):
    """Tensors over the same memory. Read-only arrays are copied, as torch has no read-only tensors."""

    def send(self, batch: Any) -> Any:
        return mapped(tensor_of, batch)


class ToDevice(DeviceTransfer):
    """Tensors on a device with synchronous copies, such as the CPU."""

    def __init__(self, device: Any) -> None:
        self._device = device

    def send(self, batch: Any) -> Any:
        return mapped(self._move, batch)

    def _move(self, value: Any, name: str) -> Any:
        return on_device(tensor_of(value, name), self._device)


class ToCuda(ToDevice):
    """Tensors on a GPU, copied from pinned memory on a separate stream.

    `receive` makes the caller's current stream wait for the copy, and records that stream for the tensors, so that the
    allocator does not reuse their memory too early.
    """

    ahead = True

    def __reduce__(self) -> Any:
        return ToCuda, (self._given,)  # streams belong to their process

    def __init__(self, device: Any) -> None:
        torch = imported("torch")
        self._given = device
        self._cuda = torch.cuda
        # "cuda" is the device that is current here; another thread, or the next loader, may have another one.
        super().__init__(device if device.index is not None else torch.device("cuda", self._cuda.current_device()))
        self._stream = _copy_stream(self._device)

    def send(self, batch: Any) -> Any:
        with self._cuda.stream(self._stream):
            moved = mapped(self._move, batch)
            copied = self._cuda.Event()
            copied.record(self._stream)
        return moved, copied

    def receive(self, sent: Any) -> Any:
        batch, copied = sent
        current = self._cuda.current_stream(self._device)
        current.wait_event(copied)

        def record(value: Any, name: str) -> Any:
            if is_tensor(value) and value.is_cuda:
                value.record_stream(current)
            return value

        return mapped(record, batch)


class ToJax(DeviceTransfer):
    """JAX arrays on the default device, or on the device or sharding given.

    If a sharding has devices of other processes, a batch is this process's rows of a global array
    (`jax.make_array_from_process_local_data`).
    """

    ahead = True

    def __reduce__(self) -> Any:
        return ToJax, (self._where,)

    def __init__(self, where: Any) -> None:
        self._jax = imported("jax")
        self._where = where
        self._is_shared = not getattr(where, "is_fully_addressable", True)

    def send(self, batch: Any) -> Any:
        return mapped(self._put, batch)

    def _put(self, value: Any, name: str) -> Any:
        try:
            if self._is_shared:
                return self._jax.make_array_from_process_local_data(self._where, host_array_of(self._jax, value, name))
            return jax_array_of(self._jax, value, name, self._where)
        except ValueError as error:
            if "divisible" not in str(error):
                raise
            raise SchemaMismatch(
                f"{name or 'the batch'} has {len(value):,} rows, which the sharding cannot split evenly: {error}. "
                'Pass uneven="full" to give every batch batch_size rows, or "drop" to leave the rest out, and a '
                "batch_size that is a multiple of this process's devices"
            ) from None


@functools.lru_cache
def _copy_stream(device: Any) -> Any:
    """The stream of all copies to a device: torch keeps free memory by stream, so the next loader uses it again."""
    return imported("torch").cuda.Stream(device)


def _to_device(device: Any) -> DeviceTransfer:
    return ToCuda(device) if device.type == "cuda" else ToDevice(device)
