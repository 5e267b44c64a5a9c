"""CachedModule: a frozen module that computes each sample once.

A call looks all ids up at once, takes the hits from the cache, runs the module on the misses alone, and returns the
batch as the module would have. Besides the samples, outputs depend on weights, code, settings, arguments that are the
same for all samples, and autocast. These are checked at every call; a change raises `StaleCache`. If a batch does not
show which arguments are per sample, the module computes it whole and its outputs are not stored.
"""

import contextlib
import logging
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any, Self

import numpy as np
import torch
from torch import nn

from warmstore.errors import BadIds, StaleCache
from warmstore.features.calls.call_arguments import IDS, Arguments, BatchArgs, Roles, is_mapping
from warmstore.features.calls.call_settings import CallSettings
from warmstore.features.calls.module_method import ModuleMethod, as_module, parameters_of
from warmstore.features.calls.stateless import DrawCheck, TrainingCheck, check_stateless
from warmstore.features.keyed.cache_session import CacheSession
from warmstore.features.keyed.cache_versions import difference, fingerprint_of
from warmstore.features.module_changes import ModuleChangeDetector, detector_of
from warmstore.features.open_cache import OpenCache
from warmstore.features.outputs.dims_inference import Dimensions, is_guess
from warmstore.features.outputs.out_dims import UNSET, check_out_dims
from warmstore.features.outputs.output_structure import unflatten
from warmstore.features.outputs.placement import detached, placed
from warmstore.features.outputs.selection import OutputSelection
from warmstore.identity import Identity
from warmstore.identity.kinds.torch_objects import autocast_modes
from warmstore.records.index.sample_keys import Keys, as_keys

_log = logging.getLogger("warmstore")


_Hit = tuple[OpenCache, CacheSession, Identity, torch.device, str, torch.device | None]
"""The last call that found all its samples: its cache, session and identity, the input's device, autocast, and the
output's device."""


class _OtherVersionError(Exception):
    """The module has changed since its outputs were looked up."""


class CachedModule(nn.Module):
    """Wrap a frozen module so that each sample is computed once, over all epochs, runs and processes.

    Call it like the module, with one id per sample: `features(x, cache_ids=ids)`. Instead of the keyword, ids may be in
    a dict argument under "cache_ids", or be returned by `key_from_batch`. Ids are str, int, bytes, paths, UUIDs or
    tuples of these, in lists, arrays or tensors.

    `train()` and `eval()` do not change the wrapped module, because its outputs depend on its mode. Set the mode before
    wrapping. The `state_dict` is the wrapped module's.

    Args:
        module: any module whose output holds one value per sample, in any nesting; or a method of a module, such as
            `clip.encode_image`.
        cache: a `FeatureCache`, which keeps the outputs. Several modules may share it while their fingerprints agree.
        enabled: False calls the module and nothing else.
        key_from_batch: called with the arguments of `forward`; returns the ids.
        batch_args: positions and names of the arguments that have one value per sample, such as `[0, "mask"]`, or paths
            of parts of arguments, such as `(0, "mask")`. If None, they are inferred from lengths.
        out_dims: the dimension of the samples in each tensor of the output, as for torch.vmap: an int, or ints in
            tuples, lists and dicts that match the output or a prefix of it. None marks a part that is the same for all
            samples in every batch. The default is dimension 0.
        enforce_stateless: refuse a module with trainable parameters, or one that is random or depends on the batch.
        map_location: the device of the outputs; None for the device of the input.
        select: the parts of the output to return and to cache: a name, such as "last_hidden_state", or names, which
            give a dict. Names are keys of a dict, or attributes. None takes the whole output.
        version: replaces the identity of parts of the module and of arguments that have none. Change the version when
            these parts change.
        ignore: places to leave out of the identity, as errors and logs name them, such as "module.logger".

    Raises:
        NotStateless: see `enforce_stateless`.
        TypeError: `module` is neither a module nor a method of one.
        ValueError: `out_dims` has an entry that is neither an int nor None, or `select` names nothing.
        NoFingerprint: some part of the module has no identity, so its changes would not be noticed. The message names
            the part and a remedy.
    """

    def __init__(
        self,
        module: nn.Module | Callable[..., Any],
        cache: OpenCache,
        *,
        enabled: bool = True,
        key_from_batch: Callable[..., Any] | None = None,
        batch_args: BatchArgs = None,
        out_dims: Any = None,
        enforce_stateless: bool = True,
        map_location: torch.device | str | None = None,
        select: str | Sequence[str] | None = None,
        version: str | None = None,
        ignore: Collection[str] = (),
    ) -> None:
        super().__init__()
        self.module = module = as_module(module)
        self.cache = cache
        self.enabled = enabled
        self._key_from_batch = key_from_batch
        self._batch_args = batch_args
        self._names = parameters_of(module)
        check_out_dims(out_dims)
        self._out_dims = UNSET if out_dims is None else out_dims
        self._select = OutputSelection.of(select)
        self._device = None if map_location is None else torch.device(map_location)
        ignored = frozenset([ignore] if isinstance(ignore, str) else ignore)
        self._settings = CallSettings(version, ignored)
        if enforce_stateless:
            check_stateless(module)
        self._draws, self._training = DrawCheck(enforce_stateless), TrainingCheck(enforce_stateless)
        self._detector = detector_of(module, version, ignored)
        self._detector.identity(again=True)  # raises NoFingerprint
        cache._detectors.add(self._detector)
        self._bound: dict[Any, tuple[CacheSession, int]] = {}  # by cache, identity, settings, autocast
        self._last: _Hit | None = None
        self._roles: Roles = {}
        self._recalled = False  # whether the roles stored in the cache were read
        self._dimensions = Dimensions()
        self._warned: set[str] = set()
        self.register_state_dict_post_hook(_strip_prefix)  # type: ignore[no-untyped-call]
        self.register_load_state_dict_pre_hook(_add_prefix)  # type: ignore[no-untyped-call]

    def forward(self, *args: Any, cache_ids: Any = None, **kwargs: Any) -> Any:
        """The module's output for a batch, computed only where it is not cached. It carries no gradient.

        Raises:
            BadIds: no ids, or more or fewer than samples.
            BadIdType: an id of another type.
            StaleCache: the module, other arguments or autocast differ from what filled the cache.
            NoFingerprint: an argument, or something that the program put into the module, has no identity.
            NotStateless: outputs are random, or parameters require gradients by now, where gradients are recorded.
            SchemaMismatch: an output of another structure, dtype or shape than the cache holds.
            AmbiguousBatch: it is unclear which values belong to which sample, or an earlier inference was wrong.
            WriteFailed: an earlier write in the background failed; its samples are still pending.
        """
        if not self.enabled:
            with self._current.calling():
                return self._select.of_output(self.module(*args, **kwargs))
        if torch.compiler.is_compiling():
            return torch.compiler.disable(self._call)(args, kwargs, cache_ids)  # files and locks cannot be traced
        return self._call(args, kwargs, cache_ids)

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any], cache_ids: Any) -> Any:
        self._training.check(self.module)
        last = self._last  # another thread may clear it
        if last is not None:
            served = self._served(last, args, kwargs, cache_ids)
            if served is not None:
                return served
            self._last = None
        keys, arguments = self._read(args, kwargs, cache_ids)
        where = arguments.device()
        if not arguments.has_values():
            return self._compute(args, kwargs)
        if not len(keys):
            return self._compute_only(arguments)
        if arguments.open is not None:
            name, value = arguments.open
            shape = tuple(value.shape) if hasattr(value, "shape") else f"({len(value)},)"
            self._warn_once(
                name,
                f"{name} of shape {shape} may have one row for each of {len(keys)} samples, or be the same for all "
                "samples. Such batches are computed and not stored. Name the arguments that are batches with "
                "CachedModule(batch_args=)",
            )
            return self._compute_only(arguments)
        identity = self._current.identity()
        session = self._bind(arguments, identity)
        device = self._device or where or _device_of(self.module)
        values, missing = session.fetch(keys)
        if self._out_dims is not UNSET:
            session.check_dims(self._out_dims)
        if not len(missing) and session.serves(len(keys)):
            is_plain = self._out_dims is UNSET and not kwargs and _is_one_tensor(args)
            if where is not None and is_plain and not arguments.fixed():  # `batch_args` may say it is a setting
                self._last = self.cache, session, identity, where, _autocast(where), device
            return session.assemble(values, device)
        try:
            return self._fill(session, arguments, keys, values, missing, device)
        except _OtherVersionError:  # the program changed something that the quick check misses
            return self._call(args, kwargs, cache_ids)
        except BaseException:
            if session is self.cache._session:  # every other version is that of its fingerprint
                session.version.unbind()  # the program may change the module and try again
            raise

    def _served(self, last: _Hit, args: tuple[Any, ...], kwargs: dict[str, Any], cache_ids: Any) -> Any:
        """The output for a batch of cached samples; None if some are missing or the call differs from the last one.

        A call with one tensor has no settings: its outputs depend on the module, autocast and the device alone.
        """
        cache, session, identity, where, autocast, device = last
        if cache_ids is None or kwargs or not _is_one_tensor(args) or args[0].device != where:
            return None
        if cache is not self.cache or self._current.identity() is not identity or _autocast(where) != autocast:
            return None
        keys = as_keys(cache_ids)
        return session.serve(keys, device) if len(keys) == len(args[0]) else None

    def _read(self, args: tuple[Any, ...], kwargs: dict[str, Any], cache_ids: Any) -> tuple[Keys, Arguments]:
        ids = self._ids(cache_ids, args, kwargs)
        keys = as_keys(ids)
        self._recall_roles()
        arguments = Arguments(args, kwargs, len(keys), self._batch_args, self._roles, ids)
        arguments.check()
        return keys, arguments

    def _fill(
        self,
        session: CacheSession,
        arguments: Arguments,
        keys: Keys,
        values: Any,
        missing: Any,
        device: torch.device | None,
    ) -> Any:
        """Compute the samples that were not found, store them, and assemble the batch."""
        # A repeated id is computed once.
        first, inverse = (keys if len(missing) == len(keys) else keys.take(missing)).distinct()
        which = missing[first]
        settles = session.serves(len(keys)) or len(which) > 1  # else the samples' dimension is a guess
        whole = len(which) == len(keys) or not arguments.may_cut or not settles
        computed = np.arange(len(keys)) if whole else which
        computed_keys = keys if whole else keys.take(which)
        if whole:
            args, kwargs = arguments.args, arguments.kwargs
        else:
            args, kwargs = arguments.take(torch.from_numpy(which))
        began = time.perf_counter()
        output = self._draws.checked(
            lambda: self._compute(args, kwargs, lambda: self._bind(arguments) is session),
            lambda: self._run_again(arguments, args, kwargs),
        )
        session.count_computed(time.perf_counter() - began, len(computed))
        self._check_bound(arguments, session)
        sure = self._out_dims is not UNSET or len(computed) > 1
        if self._out_dims is UNSET:
            doubt = self._doubt(session, output, arguments, computed, computed_keys)
            if doubt:
                self._warn_once("output", doubt)
                return placed(output, self._device) if whole else self._compute_only(arguments)
            sure = sure or not is_guess(output, 1, session.lists)
        stored = None if len(which) == len(computed) else which
        structure, leaves = session.put(computed_keys, output, self._out_dims, stored, sure=sure)
        if whole:
            by_path = {leaf.path: leaf.restored() for leaf in leaves}
            return unflatten(structure, lambda path: detached(by_path[path], self._device), device)
        return session.assemble(session.completed(values, missing, leaves, inverse, len(keys)), device)

    def _doubt(self, session: CacheSession, output: Any, arguments: Arguments, computed: Any, keys: Keys) -> str:
        """Why an output is not stored, or "": see `Dimensions`.

        Args:
            computed: positions in the batch of the output's samples. keys: the keys of these samples.
        """
        count = len(keys)

        def run(other_count: int) -> Any:
            return self._run_some(arguments, computed[:other_count])

        if not session.is_fixed:
            doubt = self._dimensions.doubt(self.module, output, count, session.lists, run)
            if doubt:
                return doubt
        if session.repeats.show(output, keys):
            self._dimensions.check_again(output, count, session.lists, run, session.version.path)
        return ""

    def _run_some(self, arguments: Arguments, which: Any) -> Any:
        """The module's output for some samples, of which only the shapes are used."""
        return self._run_again(arguments, *arguments.take(torch.from_numpy(which)))

    def _run_again(self, arguments: Arguments, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The module's output for arguments, which is not returned to the program. The random state is restored."""
        where = arguments.device()
        devices = [where] if where is not None and where.type == "cuda" else []
        with torch.random.fork_rng(devices):
            return self._compute(args, kwargs)

    def _settle(self, *args: Any, cache_ids: Any = None, **kwargs: Any) -> None:
        """Run a batch that repeats one sample, which shows the dimension of samples in a cache filled one by one.

        Does nothing if the dimension is known already, or if the module cannot compute such a batch.
        """
        keys, arguments = self._read(args, kwargs, cache_ids)
        if not len(keys) or arguments.open:
            return
        session = self._bind(arguments)
        if session.is_fixed and not session.is_settled:
            with contextlib.suppress(Exception):  # then the first batch of several samples shows it, or raises
                session.confirm(self._run_some(arguments, np.zeros(2, np.int64)), 2)

    def _compute_only(self, arguments: Arguments) -> Any:
        return placed(self._compute(arguments.args, arguments.kwargs), self._device)

    def _compute(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], is_bound: Callable[[], bool] | None = None
    ) -> Any:
        with torch.no_grad(), self._current.calling():  # `calling` checks the exact identity first
            if is_bound is not None and not is_bound():
                raise _OtherVersionError
            with self._settings.calling():
                return self._select.of_output(self.module(*args, **kwargs))

    def _warn_once(self, subject: str, text: str) -> None:
        """Log the first warning about a subject."""
        if subject not in self._warned:
            self._warned.add(subject)
            _log.warning("%s", text)

    def _count_missing(self, *args: Any, cache_ids: Any = None, **kwargs: Any) -> tuple[int, int]:
        """The number of samples that a call would return, and of those it would compute. Reads and computes nothing."""
        keys = as_keys(self._ids(cache_ids, args, kwargs))
        session = self._session_of(*args, cache_ids=cache_ids, **kwargs)
        if session is not None:
            session.version.see_others()  # what was in a folder that is removed is not on the disk
        missing = np.arange(len(keys)) if session is None else session.missing(keys)
        return len(keys), len(keys.take(missing).distinct()[0])

    def _session_of(self, *args: Any, cache_ids: Any = None, **kwargs: Any) -> CacheSession | None:
        """The session that a call would use; None if the batch does not show which arguments are per sample.

        Reads and computes nothing.
        """
        _, arguments = self._read(args, kwargs, cache_ids)
        return None if arguments.open else self._bind(arguments)

    def train(self, mode: bool = True) -> Self:
        """Has no effect on the wrapped module, because its outputs depend on its mode."""
        self.training = mode
        return self

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("module"), name)

    @property
    def _current(self) -> ModuleChangeDetector:
        """The detector of the wrapped module. The program, or a library that converts modules, may have replaced it."""
        module = self._modules["module"]
        assert module is not None
        if self._detector.module is not module and not module.__dict__.get("_is_replica"):  # of DataParallel
            self._detector = self._detector.of(module)
            self.cache._detectors.add(self._detector)
        return self._detector

    def _ids(self, cache_ids: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if cache_ids is not None:
            return cache_ids
        if self._key_from_batch is not None:
            return self._key_from_batch(*args, **kwargs)
        for value in (*args, *kwargs.values()):
            if is_mapping(value) and IDS in value:
                return value[IDS]
        raise BadIds(
            "cache_ids is missing: pass one stable id per sample as cache_ids=, put them into the batch dict under "
            "'cache_ids', or give CachedModule a key_from_batch function"
        )

    def _bind(self, arguments: Arguments, identity: Identity | None = None) -> CacheSession:
        identity = identity or self._current.identity()
        fixed = {**arguments.fixed(self._names), **self._select.settings}
        autocast = _autocast(arguments.device() or _device_of(self.module))
        texts = [self._settings.text(name, value) for name, value in fixed.items()]
        call = self.cache._session, identity.digest, *texts, *fixed, autocast  # the program may assign another cache
        found, unbound = self._bound.get(call, (None, 0))
        if found is None or found.version.unbound != unbound:
            settings = {name: self._settings.identity(name, value) for name, value in fixed.items()}
            found = self.cache._bind(fingerprint_of(identity, settings, autocast))._session
            found.version.roles = self._roles
            self._bound[call] = found, found.version.unbound
        return found

    def _check_bound(self, arguments: Arguments, session: CacheSession) -> None:
        """Raise StaleCache if outputs of this call no longer belong to the version of a session."""
        try:
            now = self._bind(arguments)
            if now is session:
                return
            changed = difference(session.version.fingerprint or {}, now.version.fingerprint or {})
        except StaleCache as error:
            changed = str(error)
        raise StaleCache(
            f"the module changed while it computed, so its outputs belong to no version of the cache: {changed}. Call "
            "module.eval() before wrapping it, and do not train it while it computes"
        )

    def _recall_roles(self) -> None:
        """Read the roles of arguments from the metadata of a cache that this module filled."""
        if self._recalled or not self.cache._session.is_fixed:
            return
        version = self.cache._session.version
        self._recalled = True
        stored = version.stored_roles
        if stored and (version.fingerprint or {}).get("module") == self._current.identity().digest:
            self._roles.update({path: role for path, role in stored.items() if path not in self._roles})

    def __identity__(self) -> nn.Module:
        return self.module  # both compute the same

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_bound": {}, "_last": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self.cache._detectors.add(self._detector)


def _is_one_tensor(args: tuple[Any, ...]) -> bool:
    return len(args) == 1 and type(args[0]) is torch.Tensor and args[0].ndim > 0


def _autocast(device: torch.device | None) -> str:
    # Of all devices that may compute: hooks and `forward` move inputs to others.
    return ", ".join(autocast_modes(device))


def _device_of(module: nn.Module) -> torch.device | None:
    # Inputs without a tensor, such as texts: outputs are where the module is.
    return next((tensor.device for tensors in (module.parameters(), module.buffers()) for tensor in tensors), None)


def _inner_prefix(module: nn.Module, prefix: str) -> str:
    return f"{prefix}module.module." if isinstance(module.module, ModuleMethod) else f"{prefix}module."


def _strip_prefix(module: nn.Module, state: dict[str, Any], prefix: str, metadata: Any) -> None:
    inner = _inner_prefix(module, prefix)
    _rename(state, inner, prefix)
    versions = getattr(state, "_metadata", {})
    if inner[:-1] in versions:
        versions[prefix[:-1]] = versions.pop(inner[:-1])
    _rename(versions, inner, prefix)


def _add_prefix(module: nn.Module, state: dict[str, Any], prefix: str, *rest: Any) -> None:
    _rename(state, prefix, _inner_prefix(module, prefix))


def _rename(state: dict[str, Any], old: str, new: str) -> None:
    for key in [key for key in state if key.startswith(old)]:
        state[new + key[len(old) :]] = state.pop(key)
