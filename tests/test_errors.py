"""The tree of errors is what its docstring draws: kinds, and errors that are also the builtin a caller expects."""

import builtins
import errno
import inspect
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import warmstore as ws
from warmstore import errors
from warmstore.errors import WarmstoreError

DEFINED = {
    name: value
    for name, value in vars(errors).items()
    if inspect.isclass(value) and issubclass(value, WarmstoreError) and value is not WarmstoreError
}
KINDS = [name for name, value in DEFINED.items() if value.__base__ is WarmstoreError]
ERRORS = sorted(set(DEFINED) - set(KINDS))


def drawn() -> dict[str, dict[str, str]]:
    """For each kind in the drawing, the builtin of each of its errors."""
    tree: dict[str, dict[str, str]] = {}
    lines = re.findall(r"^([│ ]   )?[├└]── (\w+) +(?:\((\w+)\))?", errors.__doc__ or "", re.MULTILINE)
    for inner, name, builtin in lines:
        if inner:
            tree[list(tree)[-1]][name] = builtin
        else:
            tree[name] = {}
    return tree


def test_the_drawing_is_complete_and_in_the_order_of_the_file() -> None:
    lines = [name for kind, drawn_errors in drawn().items() for name in (kind, *drawn_errors)]
    assert lines == list(DEFINED)


@pytest.mark.parametrize("name", ERRORS)
def test_each_has_one_kind_and_is_also_its_builtin(name: str) -> None:
    (kind,) = [kind for kind, drawn_errors in drawn().items() if name in drawn_errors]
    builtin = getattr(builtins, drawn()[kind][name])
    assert DEFINED[name].__bases__ == (DEFINED[kind], builtin)
    assert [other for other in KINDS if issubclass(DEFINED[name], DEFINED[other])] == [kind]


@pytest.mark.parametrize("name", sorted(DEFINED))
def test_each_is_public_and_described(name: str) -> None:
    assert getattr(ws, name) is DEFINED[name]
    assert name in ws.__all__
    assert DEFINED[name].__doc__


@pytest.mark.parametrize("name", ERRORS)
def test_each_survives_a_pickle(name: str) -> None:
    arguments = (errno.ENOSPC, "full", "/a/file") if issubclass(DEFINED[name], OSError) else ("what was wrong",)
    error = pickle.loads(pickle.dumps(DEFINED[name](*arguments)))
    assert type(error) is DEFINED[name]
    assert str(error) == str(DEFINED[name](*arguments))
    if issubclass(DEFINED[name], OSError):
        assert (error.errno, error.filename) == (errno.ENOSPC, "/a/file")


def a_store(folder: Path) -> ws.RecordStore:
    store = ws.RecordStore.create(folder / "store", {"x": ws.Array("int64", (2,))})
    store.append({"x": np.arange(2)})
    return store


def read_outside(folder: Path) -> None:
    with a_store(folder) as store:
        store[99]


def export_to_an_unknown_format(folder: Path) -> None:
    a_store(folder).close()
    ws.export(folder / "store", folder / "target.doc")


def open_what_is_not_there(folder: Path) -> None:
    ws.RecordStore.open(folder / "none")


def append_another_shape(folder: Path) -> None:
    with a_store(folder) as store:
        store.append({"x": np.arange(3)})


def convert_a_broken_file(folder: Path) -> None:
    (folder / "broken.npy").write_bytes(b"no array")
    ws.convert(folder / "broken.npy", folder / "store")


def name_a_generator(folder: Path) -> None:
    from warmstore.identity.identity import identify

    identify(letter for letter in "ab").require()


def create_twice(folder: Path) -> None:
    a_store(folder).close()
    a_store(folder)


def import_what_is_no_bundle(folder: Path) -> None:
    from warmstore.compiling.bundles import import_
    from warmstore.compiling.store.artifact_store import ArtifactStore

    (folder / "a.tar.zst").write_bytes(b"no bundle")
    with ArtifactStore(folder / "artifacts") as store:
        import_(store, folder / "a.tar.zst")


def open_a_remote_offline(folder: Path) -> None:
    pytest.importorskip("obstore")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WARMSTORE_OFFLINE", "1")
        ws.RecordStore.open("s3://bucket/store", cache_dir=folder)


CASES: dict[str, tuple[Callable[[Path], Any], type[Exception]]] = {
    "UsageError": (read_outside, IndexError),
    "NotSupportedError": (export_to_an_unknown_format, ValueError),
    "NotFoundError": (open_what_is_not_there, FileNotFoundError),
    "MismatchError": (append_another_shape, ValueError),
    "DataError": (convert_a_broken_file, ValueError),
    "IdentityError": (name_a_generator, ValueError),
    "StorageError": (create_twice, FileExistsError),
    "ArtifactError": (import_what_is_no_bundle, ValueError),
    "RemoteError": (open_a_remote_offline, ConnectionError),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_is_caught_where_an_operation_fails(kind: str, tmp_path: Path) -> None:
    operation, builtin = CASES[kind]
    with pytest.raises(DEFINED[kind]) as caught:
        operation(tmp_path)
    assert isinstance(caught.value, builtin)
