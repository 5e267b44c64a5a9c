"""Samples that name files: as str, paths and bytes, alone and within other values, and folders."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.identity import systems
from tests.pipeline.making import plan_of
from tests.slow import thinned
from torch.utils.data import Subset

import warmstore as ws
from warmstore.identity import named_files
from warmstore.identity.samples.sample_identities import identify_samples


def text_in(path: Any) -> str:
    return Path(os.fsdecode(path)).read_text()


def texts_below(folder: Any) -> str:
    return "".join(sorted(path.read_text() for path in Path(os.fsdecode(folder)).rglob("*.txt")))


def type_of(path: Any) -> str:
    return type(path).__name__


def first(sample: Sequence[Any]) -> str:
    return texts_below(sample[0])


def epoch(samples: Any, step: Callable[[Any], Any], folder: Path, **options: Any) -> list[Any]:
    """The values of one epoch, cached on the disk after the step."""
    pipe = ws.Pipeline(samples, **options).step(step)
    plan = plan_of(pipe, [(1, "disk", "raw")], folder=folder)
    with pipe.loader(plan, batch_size=len(samples), workers=0, sampler=ws.Sequential()) as loader:
        (batch,) = loader
    return list(batch)


@pytest.mark.parametrize("kind", [str, Path, os.fsencode, lambda path: (os.fsencode(path), 3)])
def test_a_changed_file_is_read_again(tmp_path: Path, kind: Callable[[Path], Any]) -> None:
    path = tmp_path / "one.txt"
    path.write_text("one")
    step = first if isinstance(kind(path), tuple) else text_in
    if step is first:
        path = tmp_path / "folder"
        path.mkdir()
        (path / "one.txt").write_text("one")
    assert epoch([kind(path)], step, tmp_path / "cache") == ["one"]
    (path / "one.txt" if path.is_dir() else path).write_text("another")
    assert epoch([kind(path)], step, tmp_path / "cache") == ["another"]


def test_bytes_within_a_sample_name_files(tmp_path: Path) -> None:
    path = tmp_path / "one.txt"
    path.write_text("one")
    samples = [{"path": os.fsencode(path), "label": 1}]

    def read(sample: dict[str, Any]) -> str:
        return text_in(sample["path"])

    assert epoch(samples, read, tmp_path / "cache") == ["one"]
    path.write_text("another")
    assert epoch(samples, read, tmp_path / "cache") == ["another"]


def test_the_type_of_a_path_counts(tmp_path: Path) -> None:
    path = tmp_path / "one.txt"
    path.write_text("one")
    for kind in (str, Path, os.fsencode, np.str_, np.bytes_, str, os.fsencode, Path):
        sample = kind(os.fsencode(path)) if kind is np.bytes_ else kind(path)
        samples = np.array([sample]) if isinstance(sample, np.generic) else [sample]
        assert epoch(samples, type_of, tmp_path / "cache") == [type(sample).__name__]


def structured(paths: list[str]) -> np.ndarray[Any, Any]:
    found = np.zeros(len(paths), [("path", "U200"), ("label", "i4")])
    found["path"] = paths
    return found


def of_pair(sample: Sequence[Any]) -> str:
    return text_in(sample[0])


def of_array(sample: np.ndarray[Any, Any]) -> str:
    return text_in(sample["path"].item())


TEXT_ARRAYS: dict[str, tuple[Callable[[list[str]], Any], Callable[[Any], str]]] = {
    "text": (np.array, text_in),
    "bytes": (lambda paths: np.array(paths, "S"), text_in),
    "elements": (lambda paths: list(np.array(paths)), text_in),
    "strings": (lambda paths: np.array(paths, np.dtypes.StringDType()), text_in),
    "rows": (lambda paths: np.array([[path, "x"] for path in paths]), of_pair),
    "list of rows": (lambda paths: list(np.array([[path, "x"] for path in paths], "S")), of_pair),
    "subset": (lambda paths: Subset(np.array([[path, "x"] for path in paths]), range(len(paths))), of_pair),
    "structured": (structured, of_pair),
    "structured with objects": (lambda paths: structured(paths).astype([("path", "O"), ("label", "i4")]), of_pair),
    "elements of structured": (lambda paths: list(structured(paths)), of_pair),
    "list of structured": (lambda paths: [structured([path]) for path in paths], of_array),
}


@pytest.mark.parametrize("form", TEXT_ARRAYS)
def test_text_in_arrays_names_files(tmp_path: Path, form: str) -> None:
    paths = [tmp_path / f"{number}.txt" for number in range(20)]
    for number, path in enumerate(paths):
        path.write_text(f"{number}")
    if form == "strings" and not hasattr(np.dtypes, "StringDType"):
        pytest.skip("NumPy 2")
    make, step = TEXT_ARRAYS[form]
    samples = make(list(map(str, paths)))
    expected = list(map(str, range(20)))
    assert epoch(samples, step, tmp_path / "cache") == expected
    paths[3].write_text("another")
    expected[3] = "another"
    assert epoch(samples, step, tmp_path / "cache") == expected
    assert epoch(samples, step, tmp_path / "cache") == expected


def text_if_there(path: Any) -> str:
    path = Path(os.fsdecode(path)).expanduser()
    return text_in(path) if path.exists() else ""


@pytest.mark.parametrize("kind", [str, Path, os.fsencode, np.str_, lambda name: (name,)])
@pytest.mark.parametrize("count", [40, 2 * named_files.FEW])
def test_files_are_found_wherever_in_a_list_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Callable[[str], Any], count: int
) -> None:
    """The first samples name none: files that are still to come, or words."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    names = [f"word {number}" if number % 2 or number < 20 else f"folder/{number}" for number in range(count)]
    names[32] = "~/folder/32"
    Path("folder").mkdir()
    for number in (20, 21, 25):
        Path(names[number]).write_text("a")
    step = (lambda sample: text_if_there(sample[0])) if isinstance(kind("a"), tuple) else text_if_there
    samples = list(map(kind, names))
    expected = ["a" if number in (20, 21, 25) else "" for number in range(count)]
    assert epoch(samples, step, tmp_path / "cache") == expected
    for number, text in [(20, "replaced"), (21, "replaced"), (30, "new"), (31, "new"), (32, "new")]:
        Path(names[number]).expanduser().write_text(text)
        expected[number] = text
    assert epoch(samples, step, tmp_path / "cache") == expected


def test_words_are_compared_with_names_as_the_file_system_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("Word").write_text("a")
    assert named_files.first_parts() == {"", ".", "..", "~", "Word"}
    assert named_files.first_parts([str(tmp_path / "not there")]) is None
    Path("wORD").write_text("a")
    assert named_files.first_parts() == {"", ".", "..", "~", "Word", "wORD"}
    monkeypatch.setattr(named_files.os, "listdir", lambda folder: ["Word"])  # as where case is ignored
    assert named_files.first_parts() is None


@pytest.mark.parametrize("make", [list, np.array])
def test_which_string_of_a_sample_names_the_file_counts(tmp_path: Path, make: Callable[[Any], Any]) -> None:
    """A file that is renamed keeps its size and time."""
    names = [f"{tmp_path}/{folder}.txt" for folder in ("positive", "negative")]
    samples = make([tuple(names)] * 2)

    def label(sample: Sequence[str]) -> str:
        return "".join(str(int(Path(name).exists())) for name in sample)

    Path(names[0]).write_text("a")
    assert epoch(samples, label, tmp_path / "cache") == ["10"] * 2
    Path(names[0]).rename(names[1])
    assert epoch(samples, label, tmp_path / "cache") == ["01"] * 2


def test_the_order_of_the_paths_in_a_set_does_not_count(tmp_path: Path) -> None:
    """It differs between processes."""
    paths = [str(tmp_path / f"{number}.txt") for number in range(200)]
    for number, path in enumerate(paths):
        Path(path).write_text("a" * number)
    one, other = frozenset(paths), frozenset(paths[::-1])
    assert list(one) != list(other)
    each = identify_samples([one, other, (1, one), (1, other)]).each
    assert each[0].tolist() == each[1].tolist() != each[2].tolist() == each[3].tolist()


def with_mask(name: str, images: str, masks: str) -> str:
    return Path(images, name).read_text() + Path(masks, name).read_text()


@pytest.mark.parametrize("files", ["stat", "content"])
@pytest.mark.parametrize("replaced", ["images", "masks"])
def test_a_name_counts_in_each_folder_that_a_step_has(tmp_path: Path, replaced: str, files: str) -> None:
    folders = {name: str(tmp_path / name) for name in ("images", "masks")}
    for folder in folders.values():
        Path(folder).mkdir()
        for number in range(3):
            Path(folder, f"{number}.txt").write_text("m")

    def labelled() -> list[str]:
        pipe = ws.Pipeline(["0.txt", "1.txt", "2.txt"], files=files).step(with_mask, **folders)
        plan = plan_of(pipe, [(1, "disk", "raw")], folder=tmp_path / "cache")
        with pipe.loader(plan, batch_size=3, workers=0, sampler=ws.Sequential()) as loader:
            (batch,) = loader
        return list(batch)

    assert labelled() == ["mm"] * 3
    Path(folders[replaced], "1.txt").write_text("new")
    assert labelled() == ["mm", "newm" if replaced == "images" else "mnew", "mm"]


@pytest.mark.parametrize("samples", [[1, 2], [1.5, True], [None, None], [b"a", b"b"], [Path("a"), Path("b")]])
def test_text_is_no_value_that_prints_so(tmp_path: Path, samples: list[Any]) -> None:
    for each in (list(map(repr, samples)), samples, list(map(str, samples)), np.array(list(map(repr, samples)))):
        assert epoch(each, type_of, tmp_path / "cache") == [type(value).__name__ for value in each]


def test_bytes_that_name_no_file_count_by_content(tmp_path: Path) -> None:
    images = [os.urandom(2000), b"short", b"\0"]
    assert epoch(images, len, tmp_path / "cache") == [2000, 5, 1]
    assert epoch([b"other", *images[:2]], len, tmp_path / "cache") == [5, 2000, 5]


@pytest.mark.parametrize("files", thinned(2, ["stat", "content"]))
@pytest.mark.parametrize("is_alone", [True, False])
def test_all_files_below_a_folder_count(tmp_path: Path, files: str, is_alone: bool) -> None:
    folder = tmp_path / "video"
    (folder / "frames").mkdir(parents=True)
    (folder / "frames" / "0.txt").write_text("a")
    (folder / "frames" / "again").symlink_to(folder)  # a cycle
    sample, step = (str(folder), texts_below) if is_alone else ((str(folder), 3), first)
    assert epoch([sample], step, tmp_path / "cache", files=files) == ["a"]
    (folder / "frames" / "0.txt").write_text("bc")
    assert epoch([sample], step, tmp_path / "cache", files=files) == ["bc"]
    (folder / "frames" / "1.txt").write_text("d")
    assert epoch([sample], step, tmp_path / "cache", files=files) == ["bcd"]
    (folder / "frames" / "0.txt").unlink()
    assert epoch([sample], step, tmp_path / "cache", files=files) == ["d"]


def test_an_unchanged_folder_is_found_again(tmp_path: Path) -> None:
    folder = tmp_path / "video"
    folder.mkdir()
    (folder / "0.txt").write_text("a")
    systems.count_calls()

    def counted(path: str) -> str:
        return texts_below(systems.called(path))

    assert epoch([str(folder)], counted, tmp_path / "cache") == ["a"]
    before = systems.calls[0]
    assert epoch([str(folder)], counted, tmp_path / "cache") == ["a"]
    assert systems.calls[0] == before > 0


def test_too_many_files_below_a_folder_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(named_files, "_MOST_BELOW", 2)
    for number in range(3):
        (tmp_path / f"{number}.txt").write_text("")
    for samples in ([str(tmp_path)], [(str(tmp_path), 1)]):
        trouble = ws.Pipeline(samples).step(first).identities.trouble
        assert "has more than 2 files below it" in trouble
        assert not ws.Pipeline(samples, version="1").step(type_of).identities.trouble


def test_a_sample_that_changes_its_type_has_changed() -> None:
    samples: list[Any] = [Path("a"), Path("b")]
    states = ws.Pipeline(samples).identities.states
    before = states.look().each.copy()
    samples[0] = "a"
    assert not states.are_unchanged(np.arange(1), before).any()
