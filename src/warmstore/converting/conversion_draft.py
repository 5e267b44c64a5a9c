"""ConversionDraft: a conversion writes to the folder `.NAME.converting` beside the target until it is complete.

A draft is an ordinary store, which is then renamed to the target. When a conversion is killed or fails, its draft
stays. The next conversion of the same source resumes it; a conversion of another source removes it.
"""

import contextlib
import inspect
import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from warmstore.errors import BadSource, Damaged, NewerFormat, NotAStore, StoreExists
from warmstore.records.format.fields import Fields, fields_to_json
from warmstore.records.format.manifest import NAME, Manifest, read_manifest, write_manifest
from warmstore.records.write.store_draft import check_vacant, publish
from warmstore.replicate.record_store import RecordStore
from warmstore.storage.files import Files, is_at

CONVERTED = "converted"
"""The name of the description of the source in a store's metadata."""

_log = logging.getLogger("warmstore")

PARTITIONS = "partitions"
"""The name of the names of the source's Hive partitions in the description."""

UNKNOWN = "unknown"
"""The name, in the description of a function, of the reason why it has no identity."""

_ADVICE = "Name a new folder, or remove this one first"

_begun: set[Path] = set()
"""The targets of conversions of objects that this process has begun and not completed."""


def draft_of(target: Path) -> Path:
    """The folder of the draft for a target."""
    return target.parent / f".{target.name}.converting"


def cut_of(draft: Path) -> Path:
    """The folder to which a draft is copied up to the first record that differs from the source."""
    return draft.with_name(draft.name + ".new")


@dataclass
class ConversionDraft:
    """The folder that a conversion writes to, locked against other conversions.

    stack: holds the locks and the open store. writing: options of `RecordStore.create` and `open`. manifest: of the
    store in the folder, or None before the store is made. is_sole_copy: whether the source is an iterator that may have
    given its first records to this draft, and gives them to nobody again.
    """

    folder: Path
    target: Path
    stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    writing: dict[str, Any] = field(default_factory=dict)
    manifest: Manifest | None = None
    is_sole_copy: bool = False

    @property
    def is_draft(self) -> bool:
        """Whether the folder is still to be renamed to the target. Earlier releases converted into the target."""
        return self.folder != self.target

    @property
    def is_complete(self) -> bool:
        """Whether the store has all records."""
        return self.manifest is not None and bool(self.manifest.metadata[CONVERTED]["complete"])

    def create(self, fields: Fields, metadata: dict[str, Any]) -> RecordStore:
        """Create the store, and lock the folder."""
        store = RecordStore.create(self.folder, fields, metadata=metadata, **self.writing)
        self.stack.enter_context(store)
        hold(self.folder, self.stack)
        return store

    def open(self) -> RecordStore:
        """Open the store for appending."""
        return self.stack.enter_context(RecordStore.open(self.folder, "a", **self.writing))

    def discard(self) -> None:
        """Remove the draft.

        Raises:
            StoreExists: its records may be gone from the source.
        """
        self.check_spare()
        remove(self.folder)
        self.manifest = None

    def check_spare(self) -> None:
        """Raise StoreExists if records of the draft may be gone from the source."""
        if self.is_sole_copy:
            raise StoreExists(
                f"{self.folder} has records that the source does not begin with, and the source is an iterator that an "
                "earlier conversion in this process may have used up. Make a new iterator of all records, or remove "
                "this folder to convert what the iterator has left"
            )

    def publish(self) -> None:
        """Mark the store as complete, and rename the folder to the target.

        Raises:
            StoreExists: the target exists.
        """
        files = Files()
        manifest = read_manifest(self.folder, files)
        metadata = {**manifest.metadata, CONVERTED: {**manifest.metadata[CONVERTED], "complete": True}}
        if metadata != manifest.metadata:
            write_manifest(self.folder, replace(manifest, metadata=metadata), files)
        if self.is_draft:
            try:
                publish(self.folder, self.target, files)
            except StoreExists as error:
                raise StoreExists(
                    f"{self.target} was created by another process; the converted records are in {self.folder}"
                ) from error
            for folder in (self.folder, cut_of(self.folder)):
                remove(folder)
        _begun.discard(self.target.absolute())


def claim(
    target: Path,
    made_from: dict[str, Any],
    metadata: dict[str, Any],
    stack: contextlib.ExitStack,
    writing: dict[str, Any],
    source: Any = None,
) -> ConversionDraft:
    """The draft of a conversion into `target`, locked until the stack unwinds. `source`: where it is no file.
    `metadata`: the caller's.

    Raises:
        StoreExists: the target or the draft's folder holds something else, or another process converts into it.
        BadSource: `source` is a generator whose first records are gone.
    """
    is_again = target.absolute() in _begun
    state = inspect.getgeneratorstate(source) if inspect.isgenerator(source) else None
    if is_again and state not in (None, inspect.GEN_CREATED):
        raise BadSource(
            f"an earlier conversion into {target} in this process has failed, and the generator has begun: its first "
            "records would be missing. Make a new generator, or pass (record for record in GENERATOR) to convert what "
            "it has left"
        )
    if (target / NAME).exists():
        hold(target, stack)
        manifest = read_manifest(target, Files())
        if not isinstance(manifest.metadata.get(CONVERTED), dict):
            raise StoreExists(f"{target} holds a store that was not converted from anything. {_ADVICE}")
        if problem := _mismatch(target, manifest, made_from, metadata):
            raise StoreExists(f"{problem}. {_ADVICE}")
        return ConversionDraft(target, target, stack, writing, manifest)
    check_vacant(target)
    is_used = is_again and isinstance(source, Iterator) and state is None
    draft = ConversionDraft(draft_of(target), target, stack, writing, is_sole_copy=is_used)
    if draft.folder.exists():
        _take_over(draft, made_from, metadata)
    if source is not None:
        _begun.add(target.absolute())
    return draft


def _take_over(draft: ConversionDraft, made_from: dict[str, Any], metadata: dict[str, Any]) -> None:
    """Lock the folder of an earlier draft, and discard the draft if it is damaged or of another conversion."""
    hold(draft.folder, draft.stack)
    foreign = f"{draft.folder} is no draft of a conversion, and a conversion needs this name. Move it away"
    try:
        manifest = read_manifest(draft.folder, Files())
    except NotAStore:
        if any(draft.folder.iterdir()):
            raise StoreExists(foreign) from None
        draft.discard()
    except (Damaged, NewerFormat):
        draft.discard()
    else:
        if not isinstance(manifest.metadata.get(CONVERTED), dict):
            raise StoreExists(foreign)
        if problem := _mismatch(draft.folder, manifest, made_from, metadata):
            _log.info("a conversion starts again: %s", problem)
            draft.discard()
        else:
            draft.manifest = manifest


def _mismatch(folder: Path, manifest: Manifest, made_from: dict[str, Any], metadata: dict[str, Any]) -> str | None:
    """How a store's conversion differs from the one that is asked for, or None."""
    known = manifest.metadata[CONVERTED]
    described = fields_to_json(manifest.fields)
    for name, value in as_json(made_from).items():
        if name == "decode" and isinstance(value, dict):
            return f"{folder} may hold what another decode= made: {value[UNKNOWN]}"
        if name == PARTITIONS and name not in known:
            continue  # made by an earlier release
        if as_json(known.get(name)) == value or (name == "fields" and value == as_json(described)):
            continue
        if name == "files":
            return f"the files of the source changed since {folder} was begun"
        return (
            f"{folder} holds a store made from something else: its {name} was {known.get(name)!r:.200}, now it is "
            f"{value!r:.200}"
        )
    for name, value in metadata.items():
        was = manifest.metadata.get(name)
        if json.dumps(was, sort_keys=True) != json.dumps(value, sort_keys=True):  # NaN is not equal to itself
            return f"{folder} has other metadata: {name!r} is {was!r:.200}, and metadata= has {value!r:.200}"
    return None


def as_json(value: Any) -> Any:
    """A value after a round trip through JSON."""
    return json.loads(json.dumps(value))


def hold(folder: Path, stack: contextlib.ExitStack) -> None:
    """Lock a folder against other conversions until the stack unwinds.

    Raises:
        StoreExists: another process has locked or renamed the folder.
    """
    files = Files()
    busy = f"another process is converting into {folder}; wait for it, or name another folder"
    try:
        descriptor = files.open(folder)
    except FileNotFoundError:
        raise StoreExists(busy) from None
    stack.callback(files.close, descriptor)
    if not files.lock(descriptor, wait=False) or not is_at(descriptor, folder):
        raise StoreExists(busy)


def remove(draft: Path) -> None:
    """Remove a draft. It is renamed first: a removal that is broken off leaves nothing that looks like a draft, and the
    next one finishes it."""
    files = Files()
    removed = draft.with_name(draft.name + ".tmp")
    if removed.exists():
        files.remove_folder(removed)
    if draft.exists():
        files.rename(draft, removed)
        files.remove_folder(removed)
