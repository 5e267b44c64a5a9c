"""The tree of errors is what its docstring draws, and every error is also the builtin a caller expects."""

import errno
import inspect
import pickle
import re

import pytest

import warmstore
from warmstore import errors
from warmstore.errors import WarmstoreError

DRAWN = dict(re.findall(r"[├└]── (\w+) +\((\w+)\)", errors.__doc__ or ""))
DEFINED = {
    name: value
    for name, value in vars(errors).items()
    if inspect.isclass(value) and issubclass(value, WarmstoreError) and value is not WarmstoreError
}


def test_the_drawing_is_complete() -> None:
    assert set(DRAWN) == set(DEFINED)


@pytest.mark.parametrize("name", sorted(DEFINED))
def test_each_is_also_its_builtin_public_and_described(name: str) -> None:
    error = DEFINED[name]
    builtin = getattr(__import__("builtins"), DRAWN[name])
    assert error.__mro__[1:3] == (WarmstoreError, builtin)
    assert getattr(warmstore, name) is error
    assert error.__doc__


@pytest.mark.parametrize("name", sorted(DEFINED))
def test_each_survives_a_pickle(name: str) -> None:
    arguments = (errno.ENOSPC, "full", "/a/file") if issubclass(DEFINED[name], OSError) else ("what was wrong",)
    error = pickle.loads(pickle.dumps(DEFINED[name](*arguments)))
    assert type(error) is DEFINED[name]
    assert str(error) == str(DEFINED[name](*arguments))
    if issubclass(DEFINED[name], OSError):
        assert (error.errno, error.filename) == (errno.ENOSPC, "/a/file")
