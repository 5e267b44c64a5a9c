"""Where a conversion writes until it is complete: the folder `.NAME.converting` beside the store's own.

The draft is a store like any other and takes the store's name in one step. It stays when a conversion is killed or
fails; the next one goes on with it where it is of the same source, and removes it otherwise.
"""

import contextlib
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from warmstore.errors import Damaged, NewerFormat, NotAStore, StoreExists
from warmstore.records.format.fields import fields_to_json
from warmstore.records.format.manifest import NAME, Manifest, read_manifest, write_manifest
from warmstore.records.write.store_draft import check_vacant, publish
from warmstore.storage.files import Files, is_at

CONVERTED = "converted"
"""Under this name the metadata of a store says what it was made from."""

_ADVICE = "Name a new folder, or remove this one first"


def draft_of(target: Path) -> Path:
    """The draft of a store that is to be at `target`."""
    return target.parent / f".{target.name}.converting"


def anew_of(draft: Path) -> Path:
    """Where the records of a draft go that it shares with a source that is otherwise another one."""
    return draft.with_name(draft.name + ".new")


@dataclass
class ConversionDraft:
    """The folder a conversion writes to, held so that no other conversion does.

    manifest: of the store in it, or None where it has to be made.
    """

    folder: Path
    target: Path
    manifest: Manifest | None = None

    @property
    def is_draft(self) -> bool:
        """Whether the folder has yet to take the store's name. Stores begun by earlier releases stand at it already."""
        return self.folder != self.target

    @property
    def is_complete(self) -> bool:
        """Whether the store in it has all records."""
        return self.manifest is not None and bool(self.manifest.metadata[CONVERTED]["complete"])

    def discard(self) -> None:
        """Remove a draft that is of no use."""
        remove(self.folder)
        self.manifest = None

    def publish(self) -> None:
        """Say that the store is complete, and give it its name.

        Raises:
            StoreExists: something else took the name meanwhile.
        """
        files = Files()
        manifest = read_manifest(self.folder, files)
        remembered = {**manifest.metadata, CONVERTED: {**manifest.metadata[CONVERTED], "complete": True}}
        if remembered != manifest.metadata:
            write_manifest(self.folder, replace(manifest, metadata=remembered), files)
        if self.is_draft:
            try:
                publish(self.folder, self.target, files)
            except StoreExists as error:
                raise StoreExists(
                    f"{self.target} was made by somebody else meanwhile; what was converted is {self.folder}"
                ) from error
            remove(anew_of(self.folder))


def claim(target: Path, made_from: dict[str, Any], stack: contextlib.ExitStack) -> ConversionDraft:
    """The place for a conversion into `target`, held until the stack unwinds.

    Raises:
        StoreExists: something else is there, or another process is at it right now.
    """
    if (target / NAME).exists():
        hold(target, stack)
        manifest = read_manifest(target, Files())
        if not isinstance(manifest.metadata.get(CONVERTED), dict):
            raise StoreExists(f"{target} holds a store that was not converted from anything. {_ADVICE}")
        if problem := _mismatch(target, manifest, made_from):
            raise StoreExists(problem)
        return ConversionDraft(target, target, manifest)
    check_vacant(target)
    place = ConversionDraft(draft_of(target), target)
    if not place.folder.exists():
        return place
    hold(place.folder, stack)
    nobodys = StoreExists(f"{place.folder} is no draft of a conversion, and its place is needed for one. Move it away")
    try:
        manifest = read_manifest(place.folder, Files())
    except NotAStore:
        if any(place.folder.iterdir()):
            raise nobodys from None
        place.discard()
    except (Damaged, NewerFormat):
        place.discard()
    else:
        if not isinstance(manifest.metadata.get(CONVERTED), dict):
            raise nobodys
        if _mismatch(place.folder, manifest, made_from):
            place.discard()
        else:
            place.manifest = manifest
    return place


def _mismatch(folder: Path, manifest: Manifest, made_from: dict[str, Any]) -> str | None:
    """What is different about the conversion that a store was made by, or None where it is the one asked for."""
    known = manifest.metadata[CONVERTED]
    described = fields_to_json(manifest.fields)
    for name, value in as_json(made_from).items():
        if as_json(known.get(name)) == value or (name == "fields" and value == as_json(described)):
            continue
        if name == "files":
            return f"the files of the source changed since {folder} was begun. {_ADVICE}"
        return (
            f"{folder} holds a store made from something else: its {name} was {known.get(name)!r:.200}, now it is "
            f"{value!r:.200}. {_ADVICE}"
        )
    return None


def as_json(value: Any) -> Any:
    """A value as it comes back from JSON."""
    return json.loads(json.dumps(value))


def hold(folder: Path, stack: contextlib.ExitStack) -> None:
    """Keep other conversions out of a folder until the stack unwinds.

    Raises:
        StoreExists: another process holds it, or gave it another name meanwhile.
    """
    files = Files()
    busy = StoreExists(f"another process is converting into {folder} right now")
    try:
        descriptor = files.open(folder)
    except FileNotFoundError:
        raise busy from None
    stack.callback(files.close, descriptor)
    if not files.lock(descriptor, wait=False):
        raise busy
    if not is_at(descriptor, folder):
        raise busy


def remove(draft: Path) -> None:
    """Remove a draft. store.json goes last: without it a draft that is half removed would be nobody's."""
    files = Files()
    if draft.exists():
        for part in sorted(draft.iterdir(), key=lambda path: path.name == NAME):
            if part.is_dir():
                files.remove_folder(part)
            else:
                files.remove(part)
        files.remove_folder(draft)
