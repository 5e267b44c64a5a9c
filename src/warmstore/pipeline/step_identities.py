"""Identities of cached samples: of the steps that computed them, and of each sample's inputs.

A pipeline is identified at its first use, and checked again whenever something that it reads may have changed. Results
of a step without an identity, and of later steps, are not cached.
"""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from copy import copy
from functools import partial
from typing import Any

import xxhash

from warmstore.errors import NoFingerprint
from warmstore.identity.call_effects import effects_of
from warmstore.identity.identity import Identity, WalkResult, difference, reasons, remedies, walk_over
from warmstore.identity.patches import Patches
from warmstore.identity.plain_data import atom_text
from warmstore.identity.recorded_identity import RecordedIdentity
from warmstore.identity.samples.sample_identities import SampleIdentities
from warmstore.identity.samples.selected_samples import SelectedSamples
from warmstore.identity.walk import Walk
from warmstore.identity.watch import Watch
from warmstore.pipeline.encoders.registry import REGISTRY
from warmstore.pipeline.sample_states import SampleStates
from warmstore.pipeline.steps import ChainSettings, Step, deterministic

Description = dict[str, Any]
"""A step as JSON: name, random, threads, and the digest and the facts of its identity."""

_MOST_FACTS = 1_000
_FIRST = 16


class Identities:
    """The identities of a pipeline's source and of its deterministic steps, at the first use and now."""

    def __init__(self, source: Any, steps: Sequence[Step], settings: ChainSettings) -> None:
        self._all_steps = steps
        self._settings = settings
        self._patches = Patches().look()
        folders = _folders(steps)
        self.states = SampleStates(source, settings, folders, self._patches)
        self._elsewhere = _with_samples(folders, source)
        self._steps = [self._recorded(step) for step in steps[: deterministic(steps)]]

    def of_samples(self, source: SelectedSamples) -> "Identities":
        """The identities for some samples of the source, with the same steps."""
        chosen = copy(self)
        chosen.states = self.states.select(source)
        return chosen

    def before(self, count: int, last: Step) -> "Identities":
        """The identities of the first `count` steps, all deterministic, and another step."""
        chosen = copy(self)
        chosen._all_steps = (*self._all_steps[:count], last)
        chosen._steps = [*self._steps[:count], self._recorded(last)]
        return chosen

    def _recorded(self, step: Step) -> RecordedIdentity:
        named = step.arguments.items()
        arguments = tuple((name, atom_text(value) or id(value)) for name, value in named)
        key = arguments, step.ignore, self._settings.root, self._settings.files
        effects = effects_of(step.function, key, objects=[value for _, value in named if atom_text(value) is None])
        return RecordedIdentity(partial(self._look, step, patches=self._patches), step.version, effects)

    def _look(self, step: Step, watch: Watch | None = None, *, patches: Patches | None = None) -> Walk:
        thing = partial(step.function, **step.arguments) if step.arguments else step.function
        return walk_over(
            thing, name=step.name, ignore=step.ignore, root=self._settings.root, files=self._settings.files,
            folders=True, watch=watch, elsewhere=self._elsewhere, patches=patches,
        )  # fmt: skip

    def identify(self, step: Step) -> Identity:
        """The identity of one step now, random or not."""
        return WalkResult.of(self._look(step)).identity(step.version)

    @property
    def samples(self) -> SampleIdentities:
        """Identities of the source's samples at the last check."""
        return self.states.samples

    @property
    def keepable(self) -> int:
        """The last stage that may be cached; -1 if the source has no identity."""
        if self.samples.identity.unknown:
            return -1
        return next((at for at, step in enumerate(self._steps) if step.identity.unknown), len(self._steps))

    @property
    def trouble(self) -> str:
        """Why later stages cannot be cached, in one line; "" if all can."""
        at = self.keepable
        if at == len(self._steps):
            return ""
        unknown = self.samples.identity.unknown if at < 0 else self._steps[at].identity.unknown
        what = "Nothing is kept" if at < 1 else f"Nothing is kept after step {self._all_steps[at - 1].name!r}"
        return f"{what}: {reasons(unknown)}. {remedies(unknown)}."

    def require(self, step: int) -> None:
        """Check that samples may be cached after `step` steps.

        Raises:
            NoFingerprint: they depend on something that has no identity.
        """
        if step > self.keepable and step <= len(self._steps):
            raise NoFingerprint(self.trouble)

    def descriptions(self) -> tuple[Description, ...]:
        """Descriptions of the deterministic steps at the last check."""
        return tuple(
            describe(step, recorded.identity, self._settings.threads)
            for step, recorded in zip(self._all_steps, self._steps, strict=False)
        )

    def refresh(self, *, patches: bool = False) -> None:
        """Check the steps again, with their files and arrays.

        Args:
            patches: also check for patches of installed modules.
        """
        if patches:
            self._patches.look()
        for recorded in [*self._steps, *_encoders()]:
            recorded.refresh(again=True)

    def changed(self, known: Sequence[Description]) -> str:
        """How the steps differ from known descriptions, in words; "" if they do not.

        It also checks the source. It costs microseconds if nothing has changed.
        """
        self.states.look_at_source()
        if self.samples.identity.unknown:
            return reasons(self.samples.identity.unknown)
        for recorded, old in zip(self._steps, known, strict=False):
            now = recorded.refresh()
            if now.digest != old["digest"]:
                change = difference(old["facts"], now.facts) or "it has changed"
                return f"step {old['name']!r}: {change}"
        return ""

    @contextmanager
    def calling(self) -> Iterator[None]:
        """Changes inside this context are caches of samples and steps, not changes by the program."""
        with ExitStack() as stack:
            for recorded in self._recorded_all():
                stack.enter_context(recorded.calling())
            yield

    def called(self) -> None:
        """Attribute changes since the last check to the samples and steps that ran."""
        for recorded in self._recorded_all():
            recorded.called()

    @property
    def were_called(self) -> bool:
        """Whether all steps were called in this process, so that it is known what their calls change."""
        return all(recorded.effects.was_called for recorded in self._steps)

    def may_have_been_edited(self) -> bool:
        """Whether long lists or dicts have changed. Steps or the program may have changed them."""
        return any(recorded.has_moved_in_large() for recorded in self._recorded_all())

    def _recorded_all(self) -> list[RecordedIdentity]:
        source = self.states.recorded
        return [*self._steps, *_encoders()] if source is None else [source, *self._steps, *_encoders()]

    @property
    def window(self) -> float:
        """Seconds until an untraced write to an array is found, at most, while samples are made."""
        return max((step.window for step in self._steps), default=0.0)


def _encoders() -> list[RecordedIdentity]:
    """The identities of all encoders that the program has registered."""
    return [encoder.recorded for encoder in REGISTRY.registered()]


def _with_samples(folders: Sequence[str], source: Any) -> tuple[str, ...]:
    """The folders that contain files named by the first samples."""
    try:
        first = [str(source[at]) for at in range(min(len(source), _FIRST))] if folders else []
    except Exception:  # sources raise anything; reading the sample raises it again
        return ()
    return tuple(folder for folder in folders if any(os.path.exists(os.path.join(folder, name)) for name in first))  # noqa: PTH110, PTH118


def _folders(steps: Sequence[Step]) -> list[str]:
    """Folders named by arguments, which may contain files of samples."""
    found = []
    for step in steps:
        for value in step.arguments.values():
            if isinstance(value, str | os.PathLike) and os.path.isdir(value):  # noqa: PTH112
                found.append(os.path.abspath(os.fspath(value)))  # noqa: PTH100
    return [folder for folder in found if isinstance(folder, str)]


def describe(step: Step, identity: Identity, threads: int) -> Description:
    """The description of a step that runs with `threads` native threads."""
    facts = dict(identity.facts)
    if len(facts) > _MOST_FACTS:
        facts = {}  # a change is found by the digest, without an explanation
    return {
        "name": step.name, "random": step.random, "threads": threads, "digest": identity.digest, "facts": facts,
        **({"batched": True} if step.batched else {}),
    }  # fmt: skip


def key_of(descriptions: Sequence[Description]) -> str:
    """The key of the results of some steps, 16 hex digits."""
    what = [{name: value for name, value in step.items() if name != "facts"} for step in descriptions]
    return xxhash.xxh3_64_hexdigest(json.dumps(what, sort_keys=True).encode())


def difference_of(old: Sequence[Description], new: Sequence[Description]) -> str:
    """How two sequences of steps differ, in words; "" if they do not."""
    for before, now in zip(old, new, strict=False):
        name = now["name"]
        if before["name"] != name:
            return f"step {before['name']!r} is now {name!r}"
        if before["random"] != now["random"]:
            return f"step {name!r} is {'random' if now['random'] else 'no longer random'}"
        if before.get("batched") != now.get("batched"):
            return f"step {name!r} is {'batched' if now.get('batched') else 'no longer batched'}"
        if before["threads"] != now["threads"]:
            return f"step {name!r} runs with {now['threads']} native threads and not {before['threads']}"
        if before["digest"] != now["digest"]:
            known = before["facts"] and now["facts"]  # what was pulled has none
            change = (known and difference(before["facts"], now["facts"])) or "it has changed"
            return f"step {name!r}: {change}"
    return ""
