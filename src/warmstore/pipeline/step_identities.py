"""What kept samples depend on: the steps that made them, and what each was made from.

A pipeline is identified when it is first used, and looked at again whenever something that it reads may have changed.
Steps after one that cannot be told from another are not kept.
"""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import xxhash

from warmstore.errors import NoFingerprint
from warmstore.identity.identity import Found, Identity, difference, reasons, remedies, walk_over
from warmstore.identity.memory import RecordedIdentity, memory_of
from warmstore.identity.patches import Patches
from warmstore.identity.sample_identities import SampleIdentities
from warmstore.identity.walk import Walk
from warmstore.identity.watch import Watch
from warmstore.pipeline.sample_states import SampleStates
from warmstore.pipeline.steps import Step, deterministic

if TYPE_CHECKING:
    from warmstore.pipeline.pipeline import Pipeline

Description = dict[str, Any]
"""Of a step, as JSON: name, random, threads, digest of its identity, and the facts behind that."""

_MOST_FACTS = 1_000
_FIRST = 16


class Identities:
    """The identities of a pipeline's source and of its deterministic steps, as they were first and are now."""

    def __init__(self, pipe: "Pipeline") -> None:
        self._pipe = pipe
        self._patches = Patches().look()
        self.states = SampleStates(pipe, _folders(pipe.steps), self._patches)
        self._elsewhere = _folders_of_samples(pipe)
        self._steps = [self._recorded(step) for step in pipe.steps[: deterministic(pipe.steps)]]

    def _recorded(self, step: Step) -> RecordedIdentity:
        pipe = self._pipe
        arguments = tuple((name, id(value)) for name, value in sorted(step.arguments.items()))
        memory = memory_of(step.function, (arguments, step.ignore, pipe.root, pipe.files))
        return RecordedIdentity(partial(self._look, step), step.version, memory)

    def _look(self, step: Step, watch: Watch) -> Walk:
        pipe = self._pipe
        return look_at_step(
            step, root=pipe.root, files=pipe.files, watch=watch, elsewhere=self._elsewhere, patches=self._patches
        )

    @property
    def samples(self) -> SampleIdentities:
        """Of the source, as it was when it was last looked at."""
        return self.states.samples

    @property
    def keepable(self) -> int:
        """After how many steps samples may be kept at most; -1 where not even the source's can be told."""
        if self.samples.identity.unknown:
            return -1
        return next((at for at, one in enumerate(self._steps) if one.identity.unknown), len(self._steps))

    @property
    def trouble(self) -> str:
        """Why no more can be kept, in one line; "" where nothing is in the way."""
        at = self.keepable
        if at == len(self._steps):
            return ""
        unknown = self.samples.identity.unknown if at < 0 else self._steps[at].identity.unknown
        what = "Nothing is kept" if at < 1 else f"Nothing is kept after step {self._pipe.steps[at - 1].name!r}"
        return f"{what}: {reasons(unknown)}. {remedies(unknown)}."

    def require(self, step: int) -> None:
        """Refuse to keep samples after so many steps where that cannot be.

        Raises:
            NoFingerprint: it cannot be told whether something changes that they depend on.
        """
        if step > self.keepable and step <= len(self._steps):
            raise NoFingerprint(self.trouble)

    def descriptions(self) -> tuple[Description, ...]:
        """Of the deterministic steps, as they were when they were last looked at."""
        return tuple(
            describe(step, one.identity, self._pipe.threads)
            for step, one in zip(self._pipe.steps, self._steps, strict=False)
        )

    def refresh(self, *, patches: bool = False) -> None:
        """Look at the steps again, also at files and arrays.

        Args:
            patches: and at what the program has put into installed modules.
        """
        if patches:
            self._patches.look()
        for one in self._steps:
            one.refresh(again=True)

    def changed(self, known: Sequence[Description]) -> str:
        """What tells the steps from those that were described, in words; "" where nothing does.

        It costs microseconds where nothing moved. The source is looked at too.
        """
        self.states.look_at_source()
        if self.samples.identity.unknown:
            return reasons(self.samples.identity.unknown)
        for one, old in zip(self._steps, known, strict=False):
            now = one.refresh()
            if now.digest != old["digest"]:
                said = difference(old["facts"], now.facts) or "it is another than it was"
                return f"step {old['name']!r}: {said}"
        return ""

    @contextmanager
    def calling(self) -> Iterator[None]:
        """While samples are read and steps are run by us: what they change meanwhile is their memory."""
        with ExitStack() as stack:
            for one in self._recorded_all():
                stack.enter_context(one.calling())
            yield

    def called(self) -> None:
        """What has changed since we last looked was changed by samples that we read, and steps that we ran."""
        for one in self._recorded_all():
            one.called()

    def may_have_been_edited(self) -> bool:
        """Whether long lists and dicts hold something else, which steps and the program may have put there."""
        return any(one.has_moved_in_large() for one in self._recorded_all())

    def _recorded_all(self) -> list[RecordedIdentity]:
        source = self.states.recorded
        return self._steps if source is None else [source, *self._steps]

    @property
    def window(self) -> float:
        """Seconds within which a write to an array that leaves no trace is found while samples are made."""
        return max((one.window for one in self._steps), default=0.0)


def identify_step(step: Step, pipe: "Pipeline") -> Identity:
    """What one step depends on now, whether it is random or not."""
    elsewhere = _folders_of_samples(pipe)
    walk = look_at_step(step, root=pipe.root, files=pipe.files, elsewhere=elsewhere)
    return Found.of(walk).identity(step.version)


def look_at_step(step: Step, **options: Any) -> Walk:
    """The walk over a step. options: of `walk_over`."""
    thing = partial(step.function, **step.arguments) if step.arguments else step.function
    return walk_over(thing, name=step.name, ignore=step.ignore, folders=True, **options)


def _folders_of_samples(pipe: "Pipeline") -> tuple[str, ...]:
    """Of the folders that arguments name, those in which files lie that the first samples name."""
    folders = _folders(pipe.steps)
    try:
        first = [str(pipe.source[at]) for at in range(min(len(pipe.source), _FIRST))] if folders else []
    except Exception:  # sources raise anything; it will be raised when the sample's turn comes
        return ()
    return tuple(one for one in folders if any(os.path.exists(os.path.join(one, name)) for name in first))  # noqa: PTH110, PTH118


def _folders(steps: Sequence[Step]) -> list[str]:
    """Folders that are named by arguments: files of samples may lie there."""
    found = []
    for step in steps:
        for value in step.arguments.values():
            if isinstance(value, str | os.PathLike) and os.path.isdir(value):  # noqa: PTH112
                found.append(os.path.abspath(os.fspath(value)))  # noqa: PTH100
    return [one for one in found if isinstance(one, str)]


def describe(step: Step, identity: Identity, threads: int) -> Description:
    """What a step's results depend on, with so many native threads beneath it."""
    facts = dict(identity.facts)
    if len(facts) > _MOST_FACTS:
        facts = {}  # what changed cannot be said, but that it did
    return {
        "name": step.name, "random": step.random, "threads": threads, "digest": identity.digest, "facts": facts,
    }  # fmt: skip


def key_of(descriptions: Sequence[Description]) -> str:
    """The key of what so many steps make, 16 hex digits."""
    what = [{name: value for name, value in one.items() if name != "facts"} for one in descriptions]
    return xxhash.xxh3_64_hexdigest(json.dumps(what, sort_keys=True).encode())


def difference_of(old: Sequence[Description], new: Sequence[Description]) -> str:
    """What tells two rows of steps apart, in words; "" where nothing does."""
    for one, other in zip(old, new, strict=False):
        name = other["name"]
        if one["name"] != name:
            return f"step {one['name']!r} is now {name!r}"
        if one["random"] != other["random"]:
            return f"step {name!r} is {'random' if other['random'] else 'no longer random'}"
        if one["threads"] != other["threads"]:
            return f"step {name!r} runs with {other['threads']} native threads and not {one['threads']}"
        if one["digest"] != other["digest"]:
            said = difference(one["facts"], other["facts"]) or "it is another than it was"
            return f"step {name!r}: {said}"
    return ""
