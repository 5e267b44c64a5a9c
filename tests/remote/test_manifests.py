"""Numbered manifests: one writer wins each number, and the newest come first."""

from pathlib import Path

import pytest

from warmstore.remote.manifests import Manifests, create, remove_older
from warmstore.remote.objects import Objects

pytest.importorskip("obstore")

STATES = Manifests("states", r"(?P<series>\w+)/(?P<number>\d{4})")


def test_a_number_is_created_once(tmp_path: Path) -> None:
    with Objects(tmp_path) as remote:
        assert remote.run(create(remote, "states/a/0001", b"first"))
        assert not remote.run(create(remote, "states/a/0001", b"other"))
        assert not remote.run(create(remote, "states/a/0001", b"longer than the first"))
        assert remote.run(create(remote, "states/a/0001", b"first")), "sent again, for its answer was lost"
        assert remote.get("states/a/0001") == b"first"


def test_series_are_listed_newest_first(tmp_path: Path) -> None:
    with Objects(tmp_path) as remote:
        for name in ("a/0002", "a/0010", "a/0009", "b/0001", "ab/0001", "a/no number", "a/0001.old"):
            remote.put(f"states/{name}", b"")
        found = remote.run(STATES.by_series(remote))
        assert {series: [state.number for state in states] for series, states in found.items()} == {
            "a": [10, 9, 2],
            "b": [1],
            "ab": [1],
        }
        assert set(remote.run(STATES.by_series(remote, "a"))) == {"a"}
        remote.run(remove_older(remote, reversed(found["a"]), keep=2))
        assert [state.number for state in remote.run(STATES.by_series(remote, "a"))["a"]] == [10, 9]
