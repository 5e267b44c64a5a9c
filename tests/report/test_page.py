"""The page of a report: every figure is found in the data again, for few caches, many and none, of any name."""

import os
import re
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.report.histories import (
    NOW,
    Found,
    Truth,
    compile_history,
    epochs,
    feature_cache,
    pipeline_history,
    write,
)
from tests.slow import either, thinned

import warmstore as ws
from warmstore.inventory.cached_folder import KINDS
from warmstore.report import report_data
from warmstore.report.page import page
from warmstore.report.report_data import collect
from warmstore.storage.humanize import format_duration, format_size


def whole(folder: Path) -> Path:
    """A folder with something of each kind."""
    path = feature_cache(folder / "features", "resnet50_v1")
    stale = {"event": "stale", "n": 99, "changed": "the values of the tensor `module.weight` changed"}
    write(path, [*epochs(12), *epochs(3, "r5", evicted_files=2, evicted_bytes=4096), stale])
    write(feature_cache(folder / "features", "clip"), epochs(2, "r2"))
    pipeline_history(folder / "plans")
    compile_history(folder / "compiled")
    with ws.RecordStore.create(folder / "photos", {"x": ws.Array("int64")}) as store:
        store.extend({"x": np.arange(9)})
    return folder


def checked(folder: Path, least: int) -> Found:
    """Check every figure of the page of a folder."""
    data = collect([folder], NOW)
    content = page(data)
    found = Found(content)
    truth = Truth(found, data)
    shown = (
        lambda value: f"{value:,.0f}",
        format_size,
        _duration,
        lambda value: f"{value:.1%}".replace("100.0", "100"),
    )
    for source, value, text in found.figures:
        assert float(value) == pytest.approx(truth.value(source), abs=2e-6), source
        assert not text or text in [show(truth.value(source)) for show in shown], (source, value, text)
    for source, text in found.titles:
        rate, hits, misses = (truth.value(source.replace(" rate", f" {name}")) for name in ("rate", "hits", "misses"))
        assert text.endswith(f": {shown[-1](rate)}, {hits:,.0f} hits, {misses:,.0f} misses"), (source, text)
    assert len(found.figures) >= least
    return found


def _duration(value: float) -> str:
    return ("\N{MINUS SIGN}" if value < 0 else "") + format_duration(abs(value))


def test_every_figure_is_in_the_data(tmp_path: Path) -> None:
    found = checked(whole(tmp_path), 150)
    # No number is anywhere else, apart from names, times, paths and the numbers of runs and epochs.
    allowed = (
        r"\d{4}-\d\d-\d\d \d\d:\d\d|Run \d+|[Rr]un \d+|epochs? \d+(–\d+, mean)?|100%|0%|\(?[+−]\d+%\)?|gpu-7|\d of \d"
    )
    for text in found.texts:
        rest = re.sub(allowed, "", text)
        known = (
            str(tmp_path),
            "resnet50_v1",
            "torch 2.12.0",
            "input 0",
            "warmstore",
            " ago",
            "the last of",
            "more",
            "earlier",
        )
        assert not re.search(r"\d", rest) or any(part in text for part in known), text


def test_sections_say_what_happened(tmp_path: Path) -> None:
    content = page(collect([whole(tmp_path)], NOW))
    for said in (
        "resnet50_v1", "decode -&gt; resize", "samples after resize, in disk, zstd", "limited by cores",
        "torch 2.12.0 -&gt; 2.13.0", "&lt;b&gt;&amp;", "module.weight` changed",
        "warmstore gc", "epochs 4\N{EN DASH}8, mean",
    ):  # fmt: skip
        assert said in content, said


def test_every_kind_has_a_colour(tmp_path: Path) -> None:
    content = page(collect([whole(tmp_path)], NOW))
    names = set(re.findall(r"^\.kind-(\w+)", content, re.MULTILINE)) | set(re.findall(r", \.kind-(\w+)", content))
    assert names == {*KINDS, "others"}
    for name in set(re.findall(r"var\(--(\w+)\)", content)):
        assert content.count(f"--{name}:") == 3, name  # light, dark and printed


def test_nothing_is_fetched(tmp_path: Path) -> None:
    found = Found(page(collect([whole(tmp_path)], NOW)))
    for tag, attributes in found.tags:
        assert tag not in ("link", "img", "iframe", "object", "embed", "base"), tag
        for name, value in attributes.items():
            assert name not in ("src", "srcset", "action"), name
            assert name != "href" or str(value).startswith("#"), value
            assert not name.startswith("on"), name
    assert "url(" not in page(collect([tmp_path], NOW))
    ids = [attributes["id"] for _, attributes in found.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    targets = {str(attributes["href"])[1:] for _, attributes in found.tags if "href" in attributes}
    assert targets <= set(ids)


def test_an_empty_folder_and_one_without_a_history(tmp_path: Path) -> None:
    assert "No runs are recorded here yet" in page(collect([tmp_path], NOW))
    path = feature_cache(tmp_path, "id")
    (path / report_data.NAME).unlink(missing_ok=True)
    found = checked(tmp_path, 4)
    assert not found.histories


def test_a_cache_that_cost_more_than_it_saved(tmp_path: Path) -> None:
    write(tmp_path, [{"kind": "pipelines", "event": "epoch", "name": "a", "seconds": 9.0, "waited_seconds": 8.0,
                      "saved_seconds": -3.0, "misses": 5, "hits": 0}])  # fmt: skip
    checked(tmp_path, 10)
    content = page(collect([tmp_path], NOW))
    assert "The caches have saved no time yet" in content
    assert "\N{MINUS SIGN}3.0 s" in content


HOSTILE = ["</script><script>alert(1)</script>", 'a" onload="x', "\u202egnp.exe", "x" * 200, "日本語", "'`$(rm -rf /)`"]


@pytest.mark.parametrize("name", thinned(2, HOSTILE))
def test_names_are_texts(tmp_path: Path, name: str) -> None:
    path = feature_cache(tmp_path, name[:60])
    write(path, [*epochs(2, program=name, host=name), {"event": "stale", "n": 7, "changed": name}])
    pipeline_history(tmp_path / "plans")
    lines = (tmp_path / "plans" / report_data.NAME).read_text()
    escaped = name.replace("\\", "\\\\").replace('"', '\\"')
    (tmp_path / "plans" / report_data.NAME).write_text(lines.replace("resize", escaped))
    content = page(collect([tmp_path], NOW))
    found = Found(content)
    assert sum(tag == "script" for tag, _ in found.tags) == 1
    assert not [name for _, attributes in found.tags for name in attributes if name.startswith("on")]
    assert "\u202e" not in content
    checked(tmp_path, 30)


def test_figures_that_are_none_count_as_zero(tmp_path: Path) -> None:
    path = feature_cache(tmp_path, "id")
    bad = [{"hits": "x", "misses": [1], "seconds": {}, "saved_seconds": 1e300, "epoch": -5, "epochs": 1e17, "run": ""},
           {"hits": True, "program": 5, "host": None, "rank": "x", "pid": "y"},
           {"event": "stale", "changed": 7}, {"event": "plan", "kind": "pipelines", "band": "x", "placements": [1, {}]},
           {"event": "lookups", "reasons": {"a": "b", "c": 1e300}}, {"event": "lookups", "reasons": [1]}]  # fmt: skip
    write(path, [*bad, *epochs(2)])
    content = page(collect([tmp_path], NOW))
    assert "nan" not in content.lower().replace("finance", "")
    assert "resnet" not in content


def test_huge_numbers(tmp_path: Path) -> None:
    path = feature_cache(tmp_path, "id")
    write(path, epochs(3, samples=10**15, computed_seconds=1e12, saved_seconds=1e12, bytes_read=10**17))
    checked(tmp_path, 20)


def test_many_caches_of_many_runs(tmp_path: Path) -> None:
    count = either(50, 200)
    for number in range(count):
        folder = tmp_path / f"plans_{number:03d}"
        runs = [epochs(20, f"r{number}-{run}", kind="pipelines", event="epoch", name="a") for run in range(3)]
        write(folder, [record for run in runs for record in run])
    began = time.process_time()
    data = collect([tmp_path], NOW)
    content = page(data)
    assert time.process_time() - began < 20
    assert len(data.caches) == count
    assert len(content) < 20_000_000
    assert f"{count - 4} more caches" in content


def test_a_column_of_several_epochs_names_all_of_them(tmp_path: Path) -> None:
    write(feature_cache(tmp_path, "resnet"), epochs(97))
    content = page(collect([tmp_path], NOW))
    assert "<title>run 1, epochs 0\N{EN DASH}2: 66.7%, 200 hits, 100 misses</title>" in content
    assert "<title>run 1, epoch 96: 100%, 100 hits, 0 misses</title>" in content


def test_caches_of_one_name_are_told_apart(tmp_path: Path) -> None:
    for parent in ("a", "b"):
        write(feature_cache(tmp_path / parent, "resnet"), epochs(2, parent))
    data = collect([tmp_path], NOW)
    assert {cache.name for cache in data.caches} == {f"resnet in {tmp_path / parent}" for parent in ("a", "b")}


def test_a_machine_without_folders_uses_the_registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("WARMSTORE_REGISTRY", "1")
    path = feature_cache(tmp_path / "caches", "known")
    write(path, epochs(2))
    data = collect([], NOW)
    assert "known" in [cache.name for cache in data.caches]
    assert os.path.realpath(path) in [str(folder.path) for folder in data.folders]


def test_an_unknown_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ws.NotAStore):
        collect([tmp_path / "no"])


def damaged(change: Callable[[str], str], folder: Path) -> bool:
    """Whether the check of figures notices a change of the page."""
    from tests.report import test_page

    real = test_page.page
    test_page.page = lambda data: change(real(data))  # type: ignore[attr-defined]
    try:
        checked(folder, 1)
    except AssertionError:
        return True
    finally:
        test_page.page = real  # type: ignore[attr-defined]
    return False


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (">2.0 s<", ">3.0 s<"),
        ('data-value="1.5"', 'data-value="1.6"'),
        ("1,300<", "1,301<"),
    ],
)
def test_the_check_of_figures_notices_wrong_ones(tmp_path: Path, old: str, new: str) -> None:
    folder = whole(tmp_path)
    assert not damaged(lambda content: content, folder)
    content = page(collect([folder], NOW))
    assert old in content
    assert damaged(lambda content: content.replace(old, new, 1), folder)
