"""CachedModule: a frozen module that computes each sample once.

A call looks all ids up at once, takes the hits from the cache, runs the module on the misses alone, and returns the
batch as the module would have. What decides the outputs besides the sample (weights, code, settings, arguments that
are no batches, autocast) is watched: when it changes, the cache refuses instead of handing out another module's work.
"""

import time
from collections.abc import Callable, Collection
from typing import Any, Self

import numpy as np
import torch
from torch import nn

from warmstore.errors import BadIds, StaleCache
from warmstore.features.arguments import Arguments, BatchArgs, is_mapping, setting, text_of_setting
from warmstore.features.cache import FeatureCache
from warmstore.features.detector import detector_of
from warmstore.features.session import Session
from warmstore.features.stateless import check_stateless
from warmstore.features.structure import put_together
from warmstore.features.versions import fingerprint_of
from warmstore.identity import register
from warmstore.records.keys import Keys, as_keys

_KEY = "cache_ids"


class CachedModule(nn.Module):
    """Wrap a frozen module so that each sample is computed once, over all epochs, runs and processes.

    Call it as the module, with one id per sample: `features(x, cache_ids=ids)`. Instead of the keyword, ids may stand
    in a dict argument under "cache_ids", or be found by `key_from_batch`. Ids are str or int, in lists, arrays or
    tensors.

    `train()` and `eval()` do not reach the wrapped module: its mode is part of what the cache stands for. Set it before
    wrapping. Its `state_dict` is the wrapped module's.

    Args:
        module: any module whose output holds one value per sample, in any nesting.
        cache: where outputs are kept. Several modules may share it while their fingerprints agree.
        enabled: False calls the module and nothing else.
        key_from_batch: called with the arguments of `forward`; returns the ids.
        batch_args: positions and names of the arguments that carry one value per sample; told by their length if None.
        enforce_stateless: refuse a module with trainable parameters, or one that is random in training mode.
        map_location: the device of the outputs; that of the input if None.
        version: stands for what cannot be told of the module and of arguments: give another one whenever that changes.
        ignore: places that do not count, as errors and logs show them, such as "module.logger".

    Raises:
        NotStateless: see `enforce_stateless`.
        NoFingerprint: it cannot be told whether some part of the module changes; the message says which, and what to
            do.
    """

    def __init__(
        self,
        module: nn.Module,
        cache: FeatureCache,
        *,
        enabled: bool = True,
        key_from_batch: Callable[..., Any] | None = None,
        batch_args: BatchArgs = None,
        enforce_stateless: bool = True,
        map_location: torch.device | str | None = None,
        version: str | None = None,
        ignore: Collection[str] = (),
    ) -> None:
        super().__init__()
        self.module = module
        self.cache = cache
        self.enabled = enabled
        self._key_from_batch = key_from_batch
        self._batch_args = batch_args
        self._device = None if map_location is None else torch.device(map_location)
        self._stands_for_unknown = version
        self._ignore = frozenset([ignore] if isinstance(ignore, str) else ignore)
        if enforce_stateless:
            check_stateless(module)
        self._detector = detector_of(module, version, self._ignore)
        self._detector.identity()  # raises where something cannot be told
        cache.detectors.add(self._detector)
        self._bound: dict[Any, Session] = {}  # by all that a call's outputs depend on: the version they are in
        self.register_state_dict_post_hook(_strip_prefix)  # type: ignore[no-untyped-call]
        self.register_load_state_dict_pre_hook(_add_prefix)  # type: ignore[no-untyped-call]

    def forward(self, *args: Any, cache_ids: Any = None, **kwargs: Any) -> Any:
        """The module's output for a batch, computed only where it is not cached. It carries no gradient.

        Raises:
            BadIds: no ids, or more or fewer than samples.
            BadIdType: an id that is neither str nor int.
            StaleCache: the module, other arguments or autocast differ from what filled the cache.
            NoFingerprint: it cannot be told whether an argument, or what the program put into the module, changes.
            SchemaMismatch: an output of another structure, dtype or shape than the cache holds.
            AmbiguousBatch: what belongs to single samples cannot be told.
            WriteFailed: an earlier write in the background failed; its samples still wait.
        """
        if not self.enabled:
            with self._detector.calling():
                return self.module(*args, **kwargs)
        if torch.compiler.is_compiling():
            return torch.compiler.disable(self._call)(args, kwargs, cache_ids)  # files and locks are no graph
        return self._call(args, kwargs, cache_ids)

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any], cache_ids: Any) -> Any:
        keys = as_keys(self._ids(cache_ids, args, kwargs))
        arguments = Arguments(args, kwargs, len(keys), self._batch_args)
        arguments.check()
        where = arguments.device()
        if where is not None and where.type == "meta":  # shapes without values: nothing to keep or to compare
            with torch.no_grad(), self._detector.calling():
                return self.module(*args, **kwargs)
        session = self._bind(arguments)
        if not len(keys):
            with torch.no_grad(), self._detector.calling():
                return self.module(*args, **kwargs)
        device = self._device or where or _device_of(self.module)
        values, missing = session.fetch(keys)
        if len(missing):
            return self._fill(session, arguments, keys, values, missing, device)
        return session.assemble(values, device)

    def _fill(
        self,
        session: Session,
        arguments: Arguments,
        keys: Keys,
        values: Any,
        missing: Any,
        device: torch.device | None,
    ) -> Any:
        """Compute the samples that were not found, keep them, and put the batch together."""
        # An id that comes twice is computed once.
        first, inverse = keys.take(missing).distinct()
        which = missing[first]
        everything = len(which) == len(keys)
        if everything:
            which, args, kwargs = np.arange(len(keys)), arguments.args, arguments.kwargs
        else:
            args, kwargs = arguments.take(torch.from_numpy(which))
        began = time.perf_counter()
        with torch.no_grad(), self._detector.calling():
            output = self.module(*args, **kwargs)
        session.computed(time.perf_counter() - began, len(which))
        if not self._is_bound(arguments, session):
            raise StaleCache(
                "the module's weights changed while it computed, so its outputs belong to no version of the cache. "
                "Call module.eval() before wrapping it, or do not train it while it computes"
            )
        structure, leaves = session.put(keys.take(which), output)
        if everything:
            by_path = {leaf.path: leaf.restored() for leaf in leaves}
            return put_together(structure, lambda path: _detached(by_path[path], self._device))
        return session.assemble(session.completed(values, missing, leaves, inverse, len(keys)), device)

    def count_missing(self, *args: Any, cache_ids: Any = None, **kwargs: Any) -> tuple[int, int]:
        """How many samples a call would return, and how many of them it would compute. Reads and computes nothing."""
        keys = as_keys(self._ids(cache_ids, args, kwargs))
        arguments = Arguments(args, kwargs, len(keys), self._batch_args)
        arguments.check()
        missing = self._bind(arguments).missing(keys)
        return len(keys), len(keys.take(missing).distinct()[0])

    def train(self, mode: bool = True) -> Self:
        """Has no effect on the wrapped module, whose mode the cache depends on."""
        self.training = mode
        return self

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("module"), name)

    def _ids(self, cache_ids: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if cache_ids is not None:
            return cache_ids
        if self._key_from_batch is not None:
            return self._key_from_batch(*args, **kwargs)
        for value in (*args, *kwargs.values()):
            if is_mapping(value) and _KEY in value:
                return value[_KEY]
        raise BadIds(
            "cache_ids is missing: pass one stable id per sample as cache_ids=, put them into the batch dict under "
            "'cache_ids', or give CachedModule a key_from_batch function"
        )

    def _bind(self, arguments: Arguments) -> Session:
        identity = self._detector.identity()
        fixed = arguments.fixed()
        autocast = _autocast(arguments.device() or _device_of(self.module))
        call = identity.digest, *(text_of_setting(value) for value in fixed.values()), *fixed, autocast
        found = self._bound.get(call)
        if found is None:
            settings = {
                name: setting(name, value, self._stands_for_unknown, self._ignore) for name, value in fixed.items()
            }
            found = self.cache.bind(fingerprint_of(identity, settings, autocast)).session
            self._bound[call] = found
        return found

    def _is_bound(self, arguments: Arguments, session: Session) -> bool:
        """Whether outputs still belong to a version of the cache, after they were computed."""
        try:
            return self._bind(arguments) is session
        except StaleCache:
            return False

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_bound": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self.cache.detectors.add(self._detector)


def _autocast(device: torch.device | None) -> str:
    kind = "cpu" if device is None else device.type
    if not torch.amp.is_autocast_available(kind) or not torch.is_autocast_enabled(kind):
        return ""
    return f"{kind} {torch.get_autocast_dtype(kind)}"


def _device_of(module: nn.Module) -> torch.device | None:
    # Inputs without a tensor, such as texts: outputs are where the module is.
    return next((tensor.device for tensors in (module.parameters(), module.buffers()) for tensor in tensors), None)


def _detached(values: Any, device: torch.device | None) -> Any:
    if isinstance(values, list):
        return [_detached(value, device) for value in values]
    if not isinstance(values, torch.Tensor):
        return values
    return values.detach() if device is None else values.detach().to(device)


def _strip_prefix(module: nn.Module, state: dict[str, Any], prefix: str, metadata: Any) -> None:
    _rename(state, f"{prefix}module.", prefix)
    versions = getattr(state, "_metadata", {})
    if f"{prefix}module" in versions:
        versions[prefix[:-1]] = versions.pop(f"{prefix}module")
    _rename(versions, f"{prefix}module.", prefix)


def _add_prefix(module: nn.Module, state: dict[str, Any], prefix: str, *rest: Any) -> None:
    _rename(state, prefix, f"{prefix}module.")


def _rename(state: dict[str, Any], old: str, new: str) -> None:
    for key in [key for key in state if key.startswith(old)]:
        state[new + key[len(old) :]] = state.pop(key)


register(CachedModule, lambda cached: cached.module)  # it computes what its module does
