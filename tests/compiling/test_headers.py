"""Precompiled headers: made for what must be compiled and only then, kept within the store's limit, and verified."""

import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from tests.compiling.environments import HERE
from tests.compiling.programs import HEADERS, SINE, Report, run

from warmstore.compiling.bundles import export, import_
from warmstore.compiling.scratch.compiler_files import HEADER, is_whole, kind_of
from warmstore.compiling.scratch.scratch_dir import ScratchDir
from warmstore.compiling.session import CompileSession
from warmstore.compiling.store.artifact_store import ArtifactStore
from warmstore.compiling.store.blobs import Blobs
from warmstore.storage.files import PLAIN

PATH = "inductor/precompiled_headers/cabc.h.gch"
LIVE = """
from pathlib import Path
live = Path(cache.session.live.path)
print(sorted(str(one.relative_to(live)) for one in live.rglob("*.gch")), file=sys.stderr)
"""


def start(code: str, folder: Path) -> tuple[Report, list[str]]:
    """Run a program with headers on, as by default; its report, and the headers in its live folder at its end."""
    temporary = folder.with_name("tmp")
    temporary.mkdir(exist_ok=True)
    report = run(code + LIVE, folder, env={HEADERS: "1", "TMPDIR": str(temporary)})
    assert report.right
    assert not list(temporary.rglob("*.gch"))
    return report, json.loads(report.stderr.splitlines()[-1].replace("'", '"'))


def kept(folder: Path) -> list[str]:
    with closing(ArtifactStore(folder)) as store:
        return [one.key for one in store.all(kind=HEADER)]


@pytest.mark.slow
def test_headers_are_made_once_and_only_where_something_is_compiled(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    _, made = start(SINE, folder)
    assert made
    assert kept(folder) == made
    warm, brought = start(SINE, folder)
    assert warm.misses == []
    assert brought == []
    with closing(ArtifactStore(folder)) as store:
        assert not set(made) & set(store.job("test"))
        export(store, tmp_path / "bundle.tar.zst")
    with closing(ArtifactStore(tmp_path / "elsewhere")) as store:
        import_(store, tmp_path / "bundle.tar.zst")
        assert {one.kind for one in store.all()} >= {"cpp.so", "fx_graph"}
        assert not store.all(kind=HEADER)


@pytest.mark.slow
def test_another_program_uses_them_and_damaged_ones_are_made_anew(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    _, made = start(SINE, folder)
    assert made
    with closing(ArtifactStore(folder)) as store:
        times = [one.created for one in store.all(kind=HEADER)]
    other, brought = start(SINE.replace("sin", "tanh"), folder)
    assert other.misses
    assert brought == made
    with closing(ArtifactStore(folder)) as store:
        assert [one.created for one in store.all(kind=HEADER)] == times
        damaged = [Blobs(folder / "blobs", PLAIN).path(one.digest) for one in store.all(kind=HEADER)]
    for path in damaged:
        whole = path.read_bytes()
        path.write_bytes(whole[:5000] + b"damaged" + whole[5007:])
    _, again = start(SINE.replace("sin", "cos"), folder)
    assert again == made == kept(folder)
    with closing(ArtifactStore(folder)) as store:
        assert store.verify() == []


@pytest.mark.slow
def test_what_is_compiled_after_the_end_does_without(tmp_path: Path) -> None:
    """Torch remembers where its headers are; not those that went with the live folder."""
    code = SINE + "cache.close()\nvalues = torch.compile(lambda x: torch.cos(x) * 2)(x)\nright = torch.cos(x) * 2\n"
    report = run(code, tmp_path / "store", env={HEADERS: "1", "TMPDIR": str(tmp_path)})
    assert report.right


@pytest.fixture
def session(tmp_path: Path) -> Callable[[str], CompileSession]:
    def open_(limit: str) -> CompileSession:
        store = ArtifactStore(tmp_path / "store", limit)
        live = ScratchDir.create([tmp_path / "live"])
        return CompileSession(store, live, HERE, job="job", requirements=dict, flights=None, wait=1.0)

    return open_


def test_a_small_limit_has_no_room_for_headers(session: Callable[[str], CompileSession]) -> None:
    with closing(session("100MB")) as one:
        assert not one.has_room_for_headers
    with closing(session("100GB")) as one:
        assert one.has_room_for_headers
        one.live.remove()
        assert not one.has_room_for_headers


def test_a_header_is_taken_in_when_it_is_said_to_be_whole(session: Callable[[str], CompileSession]) -> None:
    assert kind_of(PATH) == HEADER
    assert not is_whole(PATH, b"half of it")
    with closing(session("100GB")) as one:
        file = one.live.path / PATH
        file.parent.mkdir(parents=True)
        file.write_bytes(b"half of it")
        one.harvest()
        assert one.store.all() == []
        file.write_bytes(b"all of it is here")
        one.made_header(PATH)
        (artifact,) = one.store.all()
        assert one.store.read(artifact) == b"all of it is here"
        one.remember_job()
        assert one.store.job("job") == []
    with closing(session("100GB")) as one:
        one.want_header(PATH)
        assert (one.live.path / PATH).read_bytes() == b"all of it is here"
