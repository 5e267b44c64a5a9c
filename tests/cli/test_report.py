"""`warmstore report` and `warmstore top`."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from tests.cli.runner import runner
from tests.report.histories import epochs, feature_cache, write

import warmstore as ws
from warmstore.cli import app
from warmstore.report import live
from warmstore.storage.history import NAME


def run(*arguments: object, status: int = 0) -> str:
    result = runner().invoke(app, [str(argument) for argument in arguments])
    said = result.stdout + result.stderr
    assert result.exit_code == status, said
    return said


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = feature_cache(tmp_path / "caches", "resnet")
    write(path, epochs(3))
    feature_cache(tmp_path / "caches", "idle")
    (tmp_path / "caches" / "idle" / NAME).unlink(missing_ok=True)
    return tmp_path / "caches"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes here")
def test_a_pipe_is_written_to_and_not_replaced(folder: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with open(tmp_path / "read", "wb") as read, subprocess.Popen(["cat", tmp_path / "pipe"], stdout=read) as reader:
        run("report", folder, "-o", tmp_path / "pipe")
        is_pipe = (tmp_path / "pipe").is_fifo()
        if not is_pipe:
            reader.kill()
    assert is_pipe
    assert (tmp_path / "read").read_text().startswith("<!DOCTYPE html>")


def test_a_link_stays_and_the_page_is_what_it_links_to(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "pages").mkdir()
    link = tmp_path / "latest.html"
    link.symlink_to("pages/page.html")
    for _ in range(2):
        run("report", folder, "-o", link)
        assert link.is_symlink()
        assert (tmp_path / "pages" / "page.html").read_text().startswith("<!DOCTYPE html>")
    assert [path.name for path in (tmp_path / "pages").iterdir()] == ["page.html"]
    link.unlink()
    link.symlink_to("no/page.html")
    said = run("report", folder, "-o", link, status=1)
    assert said == f"Error: {tmp_path / 'no'}: there is no such folder for the page; make it first\n"


def test_a_report_is_a_page(folder: Path) -> None:
    output = run("report", folder, "-o", folder / "page.html")
    assert "page.html: " in output
    assert "1 caches that have a history and 2 folders on the disk" in output
    content = (folder / "page.html").read_text()
    assert content.startswith("<!DOCTYPE html>")
    assert len(content) < 2_000_000
    run("report", folder)
    assert Path("report.html").exists()


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    output = run("report", tmp_path / "no", "-o", tmp_path / "page.html", status=1)
    assert "is not a folder" in output
    assert not (tmp_path / "page.html").exists()
    assert "is not a folder" in run("top", tmp_path / "no", "--once", status=1)


def test_a_page_that_cannot_be_written(folder: Path) -> None:
    said = run("report", folder, "-o", folder / "no" / "page.html", status=1)
    assert said == f"Error: {folder / 'no'}: there is no such folder for the page; make it first\n"


def test_cached_functions_have_the_kind_that_ls_gives_them(tmp_path: Path) -> None:
    function = ws.cached(tmp_path)(abs)
    assert function(-1) == 1
    function.cache.close()
    assert [use["kind"] for use in json.loads(run("top", tmp_path, "--json"))] == ["functions"]
    assert [one["kind"] for one in json.loads(run("ls", tmp_path, "--json"))] == ["functions"]
    run("report", tmp_path, "-o", tmp_path / "page.html")
    assert "cached function" in (tmp_path / "page.html").read_text()


def test_top_once(folder: Path) -> None:
    output = run("top", folder, "--once")
    assert "resnet" in output
    assert "66.7%" in output
    assert "4.0 s" in output
    assert "0 of 2 caches in use; 4.0 s saved" in output  # the history ends in another year
    assert run("top", folder) == output  # it is no terminal


def test_top_as_json(folder: Path) -> None:
    resnet, idle = json.loads(run("top", folder, "--json"))
    assert (resnet["name"], resnet["kind"], resnet["total_hits"], resnet["total_misses"]) == (
        "resnet",
        "features",
        200,
        100,
    )
    assert resnet["total_saved"] == 4.0
    assert resnet["hit_rate"] == pytest.approx(2 / 3)
    assert resnet["entries"] == 8
    assert (idle["name"], idle["at"]) == ("idle", 0.0)


def test_the_present_is_what_was_recorded_last(tmp_path: Path) -> None:
    path = feature_cache(tmp_path, "id")
    now = 2_000_000_000.0
    old = epochs(2, "old", at=now - 5000)
    write(
        path,
        [
            *old,
            *epochs(3, "new", at=now - 10, pid=9),
            {"at": now - 5, "run": "other", "n": 1, "hits": 50, "seconds": 1},
        ],
    )
    (use,) = live.uses([tmp_path], now)
    assert (use.hits, use.misses, use.total_hits) == (250, 100, 350)
    assert use.samples_per_second == pytest.approx(100 / 3 + 50)
    assert use.processes == 2
    assert use.saved_seconds == 4.0
