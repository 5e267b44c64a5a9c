"""Tars that are not whole are an error, whatever tarfile makes of them."""

import bz2
import gzip
import io
import lzma
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

import warmstore as ws
from warmstore.converting.tar_members import members_of

FILES = [(f"{n}.txt", b"%d" % n * 700) for n in range(12)]


def tar() -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as made:
        for name, data in FILES:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            made.addfile(member, io.BytesIO(data))
    return file.getvalue()


def members(path: Path, data: bytes) -> list[tuple[str, bytes]]:
    path.write_bytes(data)
    return [(name, content) for name, content, _ in members_of(path)]


@pytest.mark.parametrize("pack", [bytes, gzip.compress, bz2.compress, lzma.compress, zstandard.compress])
def test_a_whole_tar_is_read(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    assert members(tmp_path / "x.tar", pack(tar())) == FILES


@pytest.mark.parametrize("pack", [bytes, gzip.compress, bz2.compress, lzma.compress])
def test_no_cut_is_taken_for_the_end(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    whole = pack(tar())
    end = len(whole) if pack is not bytes else 12 * 512 + sum(-(-len(data) // 512) * 512 for _, data in FILES)
    for length in {*range(0, end, max(end // 60, 1)), *range(512, end, 512)}:
        with pytest.raises(ws.BadSource, match=r"x\.tar"):
            members(tmp_path / "x.tar", whole[:length])


def test_a_broken_header_is_not_taken_for_the_end(tmp_path: Path) -> None:
    whole = tar()
    at = whole.index(b"7.txt")
    with pytest.raises(ws.BadSource, match=rf"x\.tar cannot be read: the header at byte {at:,}"):
        members(tmp_path / "x.tar", whole[:at] + b"8" + whole[at + 1 :])
    packed = bytearray(gzip.compress(whole))
    packed[-6] ^= 1
    with pytest.raises(ws.BadSource, match="CRC"):
        members(tmp_path / "x.tar", bytes(packed))


def test_tars_that_were_joined_and_links_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ws.BadSource, match="content after the end"):
        members(tmp_path / "x.tar", tar() + tar())
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as made:
        link = tarfile.TarInfo("a.txt")
        link.type, link.linkname = tarfile.LNKTYPE, "b.txt"
        made.addfile(link)
    with pytest.raises(ws.BadSource, match=r"a\.txt is a link"):
        members(tmp_path / "x.tar", file.getvalue())
