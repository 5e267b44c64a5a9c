"""Which format a source is in, and what is said where it is none."""

import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import warmstore as ws
from warmstore.converting.format_detection import detect
from warmstore.converting.known_formats import FORMATS, OF_FILES
from warmstore.converting.source_paths import paths_of


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["a.npy"], "npy"),
        (["x.npz", "readme.md"], "npz"),
        (["data/part.parquet", "logo.png"], "parquet"),
        (["t-00000-of-00002.parquet", "t-00001-of-00002.parquet"], "parquet"),
        (["a.feather"], "arrow"),
        (["m-train.array_record-00000-of-00001"], "array_record"),
        (["shard-0.tar", "shard-1.tar"], "webdataset"),
        (["cat/1.JPG", "dog/2.png", "labels.parquet"], "images"),
        (["segments/segment_000000.arrow", "index.pkl"], "torchcachex"),
        (["dataset_info.json", "data-00000-of-00001.arrow"], "hugging_face"),
    ],
)
def test_folders_and_files_tell_their_format(tmp_path: Path, names: list[str], expected: str) -> None:
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert detect(str(tmp_path), paths_of(str(tmp_path))).name == expected
    if len(names) == 1:
        assert detect(tmp_path / names[0], paths_of(tmp_path / names[0])).name == expected


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    """A folder of tables, some of them behind a link, with a link that leads back to it."""
    rows = {"d/x": [1, 2], "d/sub/y": [3, 4], "real/z": [9], "d/sub/.hidden": [5], "d/_temporary/w": [6]}
    for name, numbers in rows.items():
        path = tmp_path / f"{name}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"a": numbers}), path)
    (tmp_path / "d" / "part2").symlink_to(tmp_path / "real")
    (tmp_path / "d" / "again").symlink_to(tmp_path / "d" / "sub")
    (tmp_path / "d" / "sub" / "up").symlink_to(tmp_path / "d")
    return tmp_path / "d"


def test_a_folder_has_the_files_behind_links_and_each_once(tables: Path, tmp_path: Path) -> None:
    with ws.convert(tables, tmp_path / "store") as store:
        assert store[:]["a"].tolist() == [9, 3, 4, 1, 2]
    (tables / "x.parquet").unlink()
    (tables / "sub" / "y.parquet").unlink()
    assert detect(str(tables), paths_of(str(tables))).name == "parquet"


@pytest.mark.parametrize("pattern", ["**", "**/*", "**/[a-z]*.parquet", "*", "**/**"])
def test_a_pattern_names_each_file_once(tables: Path, tmp_path: Path, pattern: str) -> None:
    for name in ("_temporary/w.parquet", "sub/up"):  # glob itself goes around in circles
        (tables / name).unlink()
    with ws.convert(f"{tables}/{pattern}", tmp_path / "store", format="parquet") as store:
        assert store[:]["a"].tolist() == [9, 3, 4, 1, 2]


def test_missing_and_unknown_sources_are_told_apart(tmp_path: Path) -> None:
    store = tmp_path / "store"
    for missing in ("no.npy", "none-*.tar"):
        with pytest.raises(ws.NoSource, match=missing.replace("*", r"\*")):
            ws.convert(tmp_path / missing, store)
    (tmp_path / "x.xyz").touch()
    with pytest.raises(
        ws.UnknownFormat, match=r"format of .*x\.xyz cannot be told from its name.*array_record, arrow, csv, hdf5"
    ):
        ws.convert(tmp_path / "x.xyz", store)
    with pytest.raises(
        ws.UnknownFormat, match="no format 'nope' to convert from; known are array_record, arrays, arrow"
    ):
        ws.convert(tmp_path / "x.xyz", store, format="nope")
    with pytest.raises(ws.UnknownFormat, match="a int cannot be converted"):
        ws.convert(3, store)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ws.BadSource, match="no files of the format 'parquet'"):
        ws.convert(tmp_path / "empty", store, format="parquet")
    ws.RecordStore.create(tmp_path / "other", {"x": ws.Text()}).close()
    with pytest.raises(ws.UnknownFormat, match="is a store already"):
        ws.convert(tmp_path / "other", store)
    assert not store.exists()


@pytest.mark.parametrize("options", [{"decode": True}, {"size": 3}, {"batched": True}])
def test_options_that_a_format_does_not_take_are_refused(tmp_path: Path, options: dict[str, Any]) -> None:
    np.save(tmp_path / "x.npy", np.arange(3))
    with pytest.raises(ValueError, match=f"'npy' takes no {next(iter(options))}="):
        ws.convert(tmp_path / "x.npy", tmp_path / "store", **options)


@pytest.mark.parametrize("fields", ["x", [], {}, [1], {"x": 3}])
def test_fields_are_checked(tmp_path: Path, fields: Any) -> None:
    with pytest.raises(ws.SchemaMismatch):
        ws.convert({"x": np.arange(3)}, tmp_path / "store", fields=fields)
    with pytest.raises(ws.SchemaMismatch, match=r"no field 'y'; it has \['x'\]"):
        ws.convert({"x": np.arange(3)}, tmp_path / "store", fields=["y"])


@pytest.mark.parametrize(
    ("name", "module", "extra"),
    [
        ("x.array_record", "array_record.python.array_record_module", "convert"),
        ("saved", "datasets", "hf"),
        ("images", "PIL.Image", "convert"),
    ],
)
def test_an_optional_package_that_is_missing_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, module: str, extra: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    options = {"decode": True} if name == "images" else {}
    if name.startswith("x"):
        (tmp_path / name).touch()
    else:
        (tmp_path / name / "a").mkdir(parents=True)
        (tmp_path / name / "a" / "1.png").touch()
    if name == "saved":
        (tmp_path / name / "dataset_info.json").touch()
        (tmp_path / name / "data.arrow").touch()
    with pytest.raises(ws.NotInstalled, match=rf"pip install 'warmstore\[{extra}\]"):
        ws.convert(tmp_path / name, tmp_path / "store", **options)  # type: ignore[arg-type]


def test_the_list_of_formats_is_sorted_and_help_and_docs_have_it() -> None:
    from tests.cli.runner import runner

    from warmstore.cli import app

    assert list(FORMATS) == sorted(FORMATS)
    shown = runner().invoke(app, ["store", "convert", "--help"]).output
    assert ", ".join(OF_FILES) in " ".join(shown.split())
    assert all(f'"{name}"' in (ws.convert.__doc__ or "") for name in OF_FILES)
    root = Path(__file__).parents[2]
    rows = re.findall(r"^\| `(\w+)` \|", (root / "docs/records.md").read_text(), re.MULTILINE)
    assert rows == list(FORMATS)
    listed = (root / "README.md").read_text().partition("Formats are ")[2].partition(".\n")[0]
    assert re.findall(r"`(\w+)`", listed) == list(FORMATS)
