"""What a power cut may leave: the states of a disk that a file system may have after any of some recorded operations.

The model is that of ALICE (Pillai et al., "All File Systems Are Not Created Equal", OSDI 2014) and B3 (Mohan et al.,
"Finding Crash-Consistency Bugs with Bounded Black-Box Crash Testing", OSDI 2018), with the weakest promises that Linux
file systems give:

- Bytes reach the disk by sectors of 512 bytes. A sector that was written since the last sync of its file has its old
  content, or the one after any of the writes to it, independently of all other sectors.
- The size of a file is separate from its bytes: any size that it had since the last sync, or any multiple of a sector
  in between while it grew. Bytes within the size that did not arrive are zeros.
- A name (create, rename, remove, mkdir) that was not followed by a sync of its folder has happened or not,
  independently of all other names. A rename is one operation. Syncing a file does not sync its name, nor syncing a
  folder the folder's own name.
- After a sync of a file, its bytes and its size are on the disk; after a sync of a folder, its names.
- The versions of an SQLite database come in their order: any version since its last sync may be on the disk.

Pure: operations go in, trees of bytes come out.
"""

import hashlib
import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass, field

SECTOR = 512
ROOT = 0
"""The node of the folder that is watched; its name is on the disk."""


@dataclass(frozen=True)
class Write:
    """Bytes written to a file, by a call or through a shared mapping."""

    node: int
    offset: int
    data: bytes


@dataclass(frozen=True)
class Resize:
    """A file is cut, or extended by zeros."""

    node: int
    size: int


@dataclass(frozen=True)
class Hole:
    """Bytes of a file become zeros."""

    node: int
    offset: int
    length: int


@dataclass(frozen=True)
class Version:
    """A transaction of a database is committed: all bytes of its file."""

    node: int
    data: bytes


@dataclass(frozen=True)
class Sync:
    """The bytes of a file are on the disk."""

    node: int


@dataclass(frozen=True)
class Names:
    """One operation on names: (folder, name, node), or None for a name that is removed."""

    changes: tuple[tuple[int, str, int | None], ...]
    is_folder: bool = False


@dataclass(frozen=True)
class SyncFolder:
    """The names in a folder are on the disk."""

    node: int


@dataclass(frozen=True)
class Promise:
    """What the program has said: the states of its data from `least` to `most` may be found, by their numbers."""

    least: int
    most: int


Data = Write | Resize | Hole | Version
Operation = Data | Sync | Names | SyncFolder | Promise
Tree = dict[str, bytes | None]
"""Content by path; None for a folder."""


class Pending:
    """What may be on the disk of one file: `base` is there, `operations` came since."""

    def __init__(self, base: bytes, operations: list[Data]) -> None:
        versions = [base]
        cached = bytearray(base)  # with zeros behind the end, as the last sector has
        sizes = [len(base)]
        sectors: dict[int, list[bytes]] = {}
        for operation in operations:
            if isinstance(operation, Version):
                versions.append(operation.data)
                continue
            size = sizes[-1]
            if isinstance(operation, Write):
                first, last = operation.offset, operation.offset + len(operation.data)
                new = max(size, last)
                cached.extend(bytes(max(0, new - len(cached))))
                before = bytes(cached)
                cached[first:last] = operation.data
            elif isinstance(operation, Hole):
                first, last = operation.offset, min(operation.offset + operation.length, size)
                new, before = size, bytes(cached)
                cached[first:last] = bytes(max(0, last - first))
            else:
                new = operation.size
                first, last = min(size, new), size
                before = bytes(cached)
                if new < size:
                    cached[first:last] = bytes(last - first)
                else:
                    cached.extend(bytes(max(0, new - len(cached))))
            for sector in range(first // SECTOR, -(-last // SECTOR)):
                span = slice(sector * SECTOR, (sector + 1) * SECTOR)
                known = sectors.setdefault(sector, [_whole(base[span])])
                now = _whole(bytes(cached[span]))
                if now not in known and now != _whole(before[span]):
                    known.append(now)
            if new > size:
                sizes += range((size // SECTOR + 1) * SECTOR, new, SECTOR)
            if new != size:
                sizes.append(new)
        self._base = base
        self._versions = versions
        self.sizes = list(dict.fromkeys(sizes))
        self.sectors = {sector: known for sector, known in sorted(sectors.items()) if len(known) > 1}

    @property
    def count(self) -> int:
        """How many combinations there are; some may have equal bytes."""
        found = len(self.sizes) if len(self._versions) == 1 else len(self._versions)
        for known in self.sectors.values():
            found *= len(known)
        return found

    def every(self) -> Iterator[bytes]:
        """All contents."""
        if len(self._versions) > 1:
            yield from dict.fromkeys(self._versions)
            return
        found = set()
        for size in self.sizes:
            # Sectors behind the end make no difference.
            inside = [known if sector * SECTOR < size else known[:1] for sector, known in self.sectors.items()]
            for chosen in itertools.product(*inside):
                content = self._content(size, chosen)
                if content not in found:
                    found.add(content)
                    yield content

    def any(self, rng: random.Random) -> bytes:
        """One content: often one where all or nothing has arrived, or a run of sectors from either end."""
        if len(self._versions) > 1:
            return rng.choice(self._versions)
        size = rng.choice((self.sizes[-1], self.sizes[-1], self.sizes[0], rng.choice(self.sizes)))
        known = list(self.sectors.values())
        last = [len(one) - 1 for one in known]
        kind = rng.randrange(6)
        if kind == 0:
            chosen = [rng.randrange(len(one)) for one in known]
        elif kind == 1:
            chosen = [0] * len(known)
        elif kind == 2:
            chosen = last
        else:
            border = rng.randrange(len(known) + 1)
            chosen = [at if (number < border) == (kind % 2 == 0) else 0 for number, at in enumerate(last)]
            if kind == 5 and known:  # all but one, or one alone
                other = rng.randrange(len(known))
                arrived = rng.random() < 0.5
                chosen = [at if (number != other) == arrived else 0 for number, at in enumerate(last)]
        return self._content(size, [one[at] for one, at in zip(known, chosen, strict=True)])

    def _content(self, size: int, chosen: tuple[bytes, ...] | list[bytes]) -> bytes:
        content = bytearray(self._base[:size].ljust(size, b"\0"))
        for sector, data in zip(self.sectors, chosen, strict=True):
            first = sector * SECTOR
            if first < size:
                content[first : min(first + SECTOR, size)] = data[: size - first]
        return bytes(content)


def _whole(data: bytes) -> bytes:
    return data.ljust(SECTOR, b"\0")


@dataclass
class Disk:
    """What is on the disk for certain, and what came since. `apply` takes the operations in their order."""

    folders: set[int] = field(default_factory=lambda: {ROOT})
    names: dict[tuple[int, str], int] = field(default_factory=dict)
    content: dict[int, bytes] = field(default_factory=dict)
    pending_names: list[Names] = field(default_factory=list)
    pending: dict[int, list[Data]] = field(default_factory=dict)
    promise: Promise = Promise(0, 0)
    _files: dict[int, tuple[int, Pending]] = field(default_factory=dict)

    def apply(self, operation: Operation) -> None:
        match operation:
            case Promise():
                self.promise = operation
            case Names():
                if operation.is_folder:
                    self.folders.update(node for _, _, node in operation.changes if node is not None)
                self.pending_names.append(operation)
            case SyncFolder(node):
                self._sync_names(node)
            case Sync(node):
                self._files.pop(node, None)
                if node in self.pending:
                    self.content[node] = whole(self.content.get(node, b""), self.pending.pop(node))
            case Write(node) | Resize(node) | Hole(node) | Version(node):
                self.pending.setdefault(node, []).append(operation)

    def copy(self) -> "Disk":
        """The same, to keep while this one goes on."""
        pending = {node: list(operations) for node, operations in self.pending.items()}
        names = list(self.pending_names)
        return Disk(set(self.folders), dict(self.names), dict(self.content), names, pending, self.promise)

    def _sync_names(self, folder: int) -> None:
        entries: set[tuple[int, str]] = set()
        later = []
        # From the last one: what is on the disk takes with it what happened to the same names before.
        for operation in reversed(self.pending_names):
            touched = {(parent, name) for parent, name, _ in operation.changes}
            if any(parent == folder for parent, _ in touched) or touched & entries:
                entries |= touched
            else:
                later.append(operation)
        done = [operation for operation in self.pending_names if operation not in later]
        for operation in done:
            _rename(self.names, operation)
        self.pending_names = later[::-1]

    @property
    def operations(self) -> int:
        """Operations since the last sync of what they changed."""
        return len(self.pending_names) + sum(map(len, self.pending.values()))

    def every(self, limit: int) -> list[Tree] | None:
        """All states; None for more than about `limit`."""
        total = 1 << len(self.pending_names)
        if total > limit:
            return None
        contents: dict[int, list[bytes]] = {}
        for node, operations in self.pending.items():
            file = self._file(node, operations)
            if file.count > limit:
                return None
            contents[node] = list(file.every())
            total *= len(contents[node])
            if total > limit:
                return None
        found: dict[bytes, Tree] = {}
        for happened in itertools.product((False, True), repeat=len(self.pending_names)):
            names = self._names(happened)
            reached = [node for node in contents if node in names.values()]
            for chosen in itertools.product(*(contents[node] for node in reached)):
                tree = self._tree(names, dict(zip(reached, chosen, strict=True)))
                found.setdefault(digest(tree), tree)
        return list(found.values())

    def any(self, rng: random.Random) -> Tree:
        """One state."""
        share = rng.choice((0.0, 0.15, 0.5, 0.85, 1.0))
        names = self._names([rng.random() < share for _ in self.pending_names])
        reached = set(names.values())
        contents = {
            node: self._file(node, operations).any(rng) for node, operations in self.pending.items() if node in reached
        }
        return self._tree(names, contents)

    def _file(self, node: int, operations: list[Data]) -> Pending:
        known = self._files.get(node)
        if known is None or known[0] != len(operations):
            known = self._files[node] = len(operations), Pending(self.content.get(node, b""), operations)
        return known[1]

    def complete(self) -> Tree:
        """The state without a power cut."""
        contents = {node: whole(self.content.get(node, b""), operations) for node, operations in self.pending.items()}
        return self._tree(self._names([True] * len(self.pending_names)), contents)

    def _names(self, happened: tuple[bool, ...] | list[bool]) -> dict[tuple[int, str], int]:
        names = dict(self.names)
        for operation, has in zip(self.pending_names, happened, strict=True):
            if has:
                _rename(names, operation)
        return names

    def _tree(self, names: dict[tuple[int, str], int], contents: dict[int, bytes]) -> Tree:
        inside: dict[int, list[tuple[str, int]]] = {}
        for (folder, name), node in names.items():
            inside.setdefault(folder, []).append((name, node))
        tree: Tree = {}
        waiting = [("", ROOT)]
        while waiting:
            path, folder = waiting.pop()
            for name, node in inside.get(folder, ()):
                below = f"{path}{name}"
                if node in self.folders:
                    # A folder that a lost rename leaves in two places is in the first.
                    tree[below] = None
                    waiting.append((f"{below}/", node))
                else:
                    tree[below] = contents.get(node, self.content.get(node, b""))
        return tree


def whole(base: bytes, operations: list[Data]) -> bytes:
    """A file with all of its operations."""
    content = bytearray(base)
    for operation in operations:
        match operation:
            case Version(_, data):
                content = bytearray(data)
            case Write(_, offset, data):
                content.extend(bytes(max(0, offset + len(data) - len(content))))
                content[offset : offset + len(data)] = data
            case Resize(_, size):
                del content[size:]
                content.extend(bytes(max(0, size - len(content))))
            case Hole(_, offset, length):
                last = min(offset + length, len(content))
                content[offset:last] = bytes(max(0, last - offset))
    return bytes(content)


def digest(tree: Tree) -> bytes:
    """A hash of a state."""
    found = hashlib.blake2b(digest_size=16)
    for path, content in sorted(tree.items()):
        found.update(path.encode() + (b"/" if content is None else b"\0%d\0" % len(content)))
        found.update(content or b"")
    return found.digest()


def _rename(names: dict[tuple[int, str], int], operation: Names) -> None:
    for folder, name, node in operation.changes:
        if node is None:
            names.pop((folder, name), None)
        else:
            names[folder, name] = node
