"""Batches arrive as NumPy, torch or JAX, dtypes kept, or it is said why not."""

import copy
import sys
from collections import UserDict, namedtuple
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import warmstore as ws
from warmstore.loading.prefetch.device_transfer import ToCuda, mapped, transfer_to


def test_torch_shares_the_memory() -> None:
    delivery = transfer_to("torch")
    assert delivery is not None
    array = np.arange(6.0)
    sent = delivery.send({"x": array, "y": [array], "z": "text", "n": 3})
    array[0] = 7
    assert sent["x"][0] == sent["y"][0][0] == 7
    assert (sent["z"], sent["n"]) == ("text", 3)


def test_read_only_arrays_are_copied_without_a_warning(store: ws.RecordStore) -> None:
    (batch, *_) = ws.Loader(store, 5, fields=["points", "jpeg"], to="torch")
    assert batch["points"][3].tolist() == [[3.0, 3.0]] * 3
    batch["points"][3][0] = 9
    assert store["points"][3][0, 0] == 3
    assert bytes(batch["jpeg"][2]) == b"\2\2"


def test_dtypes_numpy_lacks_arrive_in_torch() -> None:
    source = torch.arange(4, dtype=torch.bfloat16)
    (batch,) = ws.Loader({"x": source}, 4, to="torch")
    assert batch["x"].dtype == torch.bfloat16
    assert torch.equal(batch["x"], source)


Pair = namedtuple("Pair", "x y")


def test_structures_are_kept() -> None:
    found = mapped(lambda value, name: (name, value.sum()), {"a": Pair(np.ones(2), [np.ones(3)]), "b": np.float32(2)})
    assert found == {"a": Pair(("a", 2.0), [("a", 3.0)]), "b": ("b", 2.0)}


class Encoding(UserDict[str, Any]):
    """As the result of a tokenizer of Hugging Face."""


@pytest.mark.forks
@pytest.mark.parametrize("ahead", [{"workers": 1}, {"processes": 1, "start_method": "fork"}], ids=str)
def test_what_tokenizers_return_goes_to_the_device(ahead: Any) -> None:
    def tokens(batch: Any) -> Any:
        encoding = Encoding(batch, inner=Encoding(x=np.ones(5000)))
        encoding.encodings = "more"  # type: ignore[attr-defined]
        return encoding

    with ws.Loader({"x": np.arange(4)}, 4, transform=tokens, to="cpu", **ahead) as loader:
        (batch,) = loader
    assert type(batch) is Encoding
    assert (type(batch["x"]), type(batch["inner"]["x"])) == (torch.Tensor, torch.Tensor)
    assert batch.encodings == "more"


@pytest.mark.parametrize("to", ["cpu", torch.device("cpu"), "meta"])
@pytest.mark.parametrize("workers", [0, 2])
def test_devices(to: Any, workers: int) -> None:
    (batch,) = ws.Loader({"x": np.arange(4)}, 4, to=to, workers=workers)
    assert batch["x"].device == torch.device(to)
    assert batch["x"].dtype == torch.int64


def test_what_torch_cannot_hold_is_refused(tmp_path: Any) -> None:
    with pytest.raises(ws.UnsupportedType, match=r"torch has no dtype 'M8\[s\]'"):
        list(ws.Loader({"t": np.zeros(3, "datetime64[s]")}, 2, to="torch"))
    with pytest.raises(ws.UnsupportedType, match="t is an array of <U2"):
        list(ws.Loader({"t": np.array(["ab", "c"])}, 2, to="torch"))
    with ws.RecordStore.create(tmp_path / "gaps", {"x": ws.Array("int64")}) as store:
        store.extend({"x": [1, None]})
    for to in ("torch", "cpu"):
        with pytest.raises(ws.SchemaMismatch, match="x has records without a value"):
            list(ws.Loader(store.path, 2, to=to))


class Cuda:
    """What delivery uses of torch.cuda, which writes down what happens."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.Stream = lambda device: "copies"
        self.Event = lambda: SimpleNamespace(record=lambda stream: self.said.append(f"recorded on {stream}"))

    @contextmanager
    def stream(self, stream: str) -> Any:
        self.said.append(f"on {stream}")
        yield
        self.said.append("off")

    def current_stream(self, device: Any) -> Any:
        return SimpleNamespace(wait_event=lambda event: self.said.append("current waits"))


def test_a_gpu_is_copied_to_on_its_own_stream_and_waited_for_where_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = Cuda()
    monkeypatch.setattr(torch, "cuda", cuda)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: cuda.said.append("pinned") or tensor)
    moved = torch.Tensor.to

    def to(tensor: Any, device: Any, non_blocking: bool = False) -> Any:
        cuda.said.append(f"moved to {device}, {non_blocking}")
        return moved(tensor, "cpu")

    monkeypatch.setattr(torch.Tensor, "to", to)
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: cuda.said.append("kept for current"))
    delivery = transfer_to("cuda:1")
    assert isinstance(delivery, ToCuda)
    batch = delivery.receive(delivery.send({"x": np.arange(3), "name": ["a"]}))
    assert batch["x"].tolist() == [0, 1, 2]
    copied = ["on copies", "pinned", "moved to cuda:1, True", "recorded on copies", "off"]
    assert cuda.said == [*copied, "current waits", "kept for current"]


def test_cuda_is_the_gpu_that_is_current_where_a_loader_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    current = [0]
    cuda = SimpleNamespace(current_device=lambda: current[0], Stream=lambda device: f"stream of {device}")
    monkeypatch.setattr(torch, "cuda", cuda)
    for current[0] in (4, 5):
        delivery = ToCuda(torch.device("cuda"))
        for made in (delivery, copy.copy(delivery)):
            assert (made._device, made._stream) == (torch.device("cuda", current[0]), f"stream of cuda:{current[0]}")
    current[0] = 6
    assert copy.copy(delivery)._device == torch.device("cuda:6")  # as in another process


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jax", None)
    with pytest.raises(ws.NotInstalled, match=r"pip install 'warmstore\[jax\]"):
        ws.Loader(np.arange(3), 1, to="jax")
