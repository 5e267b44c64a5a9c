"""Pipeline: the chain of a source and its steps, with profiles, plans and loaders."""

import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, final

from warmstore.display.html import html_method
from warmstore.errors import SampleSkipped
from warmstore.identity.named_files import Files
from warmstore.loading.fill_result import FillResult
from warmstore.loading.loader import Loader
from warmstore.loading.samplers.counter_rng import MOST_SEED
from warmstore.loading.samplers.sampler import Sampler
from warmstore.loading.source import cause_of
from warmstore.loading.validation import integer, position
from warmstore.pipeline.chain import Chain
from warmstore.pipeline.filling import fill
from warmstore.pipeline.filters.filtered_chain import FilteredChain
from warmstore.pipeline.metering.epoch_observer import EpochObserver
from warmstore.pipeline.native_threads import native_threads
from warmstore.pipeline.pipeline_dataset import PipelineDataset
from warmstore.pipeline.pipeline_html import pipeline_html
from warmstore.pipeline.pipeline_loader import checked_workers, loader_of
from warmstore.pipeline.pipeline_source import PipelineSource, uncached_source
from warmstore.pipeline.plan.plan import Plan
from warmstore.pipeline.plan_opening import checked_plan, source_of
from warmstore.pipeline.profile.profile import Profile
from warmstore.pipeline.step_identities import Identities
from warmstore.pipeline.steps import Caching, ChainSettings, OnError, Step, merged, name_of
from warmstore.replicate.pull import PullResult
from warmstore.replicate.push import PushResult
from warmstore.replicate.remote_copy import Remote
from warmstore.storage.lifecycle import Closeable
from warmstore.storage.threads import thread_count
from warmstore.storage.user_paths import user_path

_MOST_WORKERS = 4


@final
class Pipeline(Closeable):
    """A source and steps; `pipe[index]` computes one sample, uncached.

    Immutable: `step` returns another pipeline.

    Args:
        source: anything with `__len__` and `__getitem__`: a list of paths, a RecordStore, an array, a Hugging Face
            Dataset; or a dict of such, or a path, as a `Loader` takes them.
        threads: BLAS and OpenMP threads in each process that runs steps. The last bits of a matrix product depend on
            their number. More threads than cores slow each other down.
        version: stands for the parts of the source that have no fingerprint. Change it when they change.
        ignore: places of the source left out of its identity, written as messages show them.
        root: files below this folder are identified by their path in it, so that the folder may move.
        files: identify the files that samples and arguments name by size, time and path ("stat") or by "content".

    Raises:
        BadSource: the source has no `__len__` or no `__getitem__`.
        ValueError: `threads` is below 1, or `files` is unknown.
    """

    _has_pending = False

    def __init__(
        self,
        source: Any,
        steps: tuple[Step, ...] = (),
        *,
        threads: int = 1,
        version: str | None = None,
        ignore: Collection[str] = (),
        root: str | os.PathLike[str] | None = None,
        files: Files = "stat",
    ) -> None:
        root = None if root is None else os.path.abspath(user_path(root))  # noqa: PTH100  it must not follow links
        settings = ChainSettings(integer("threads", threads, 1, 2**16), version, _as_tuple(ignore), root, files)
        self._filtered = FilteredChain(Chain(source, steps, settings))
        self._held: list[PipelineSource] = []

    @classmethod
    def _of(cls, filtered: FilteredChain) -> "Pipeline":
        pipe = cls.__new__(cls)
        pipe._filtered, pipe._held = filtered, []
        return pipe

    def __reduce__(self) -> Any:
        return self._of, (self._filtered,)

    def __repr__(self) -> str:
        return f"Pipeline({self._filtered.count_text()} samples, {' -> '.join(self._filtered.names)})"

    def _html(self) -> str:
        return pipeline_html(self._filtered)

    _repr_html_ = html_method(_html)

    @property
    def _chain(self) -> Chain:
        """The source and the steps. The first access evaluates filters."""
        return self._filtered.chain

    @property
    def source(self) -> Any:
        """The source of raw values, without the samples that filters leave out."""
        return self._chain.source

    @property
    def steps(self) -> tuple[Step, ...]:
        """The steps, in order, without filters."""
        return self._filtered.base.steps

    @property
    def cacheable(self) -> int:
        """Steps before the first random one."""
        return self._filtered.base.cacheable

    @property
    def identities(self) -> Identities:
        """Identities of the source and the steps, computed at the first access."""
        return self._chain.identities

    def step(
        self,
        function: Callable[..., Any],
        *,
        random: bool = False,
        cache: Caching = "auto",
        name: str | None = None,
        version: str | None = None,
        ignore: Collection[str] = (),
        on_error: OnError = "raise",
        args: Mapping[str, Any] | None = None,
        batched: bool = False,
        **arguments: Any,
    ) -> "Pipeline":
        """Return this pipeline with one more step. `map` is the same method.

        Args:
            function: of the value and named arguments; see `Step`.
            random: see `Step`.
            cache: see `Step`.
            name: see `Step`.
            version: see `Step`.
            ignore: see `Step`.
            on_error: see `Step`.
            batched: see `Step`.
            args: arguments of the function by name, for names that this method has itself, such as "random".
            arguments: the other arguments of the function.

        Raises:
            TypeError: `function` is not callable, or an argument is given twice.
            ValueError: another step has this name, or `cache` or `on_error` is unknown.
        """
        step = Step(
            function, merged(args, arguments), random, cache, self._unique(name, function), version,
            _as_tuple(ignore), batched=batched, on_error=on_error,
        )  # fmt: skip
        return self._of(self._filtered.with_step(step))

    map = step

    def filter(
        self,
        function: Callable[..., Any],
        *,
        folder: str | os.PathLike[str] | None = None,
        workers: int | None = None,
        name: str | None = None,
        version: str | None = None,
        ignore: Collection[str] = (),
        args: Mapping[str, Any] | None = None,
        **arguments: Any,
    ) -> "Pipeline":
        """Return this pipeline with the samples for which a function of the value after the last step is True.

        The function is called for all samples when they, their number or a loader are needed for the first time. A
        later run in which the folder is the same calls it for new and changed samples.

        Args:
            function: called as function(value, **arguments); it returns True or False.
            folder: where the answers are kept. None: in the folder of the plan or profile, if one is made before the
                number of samples is needed; else they are kept in memory.
            workers: processes that call the function; None takes some if it takes long.
            name: see `Step`.
            version: see `Step`.
            ignore: see `Step`.
            args: see `step`.
            arguments: see `step`.

        Raises:
            TypeError: `function` is not callable, or an argument is given twice.
            ValueError: a step before it is random, another step has this name, or `workers` is out of range.
        """
        workers = None if workers is None else integer("workers", workers, 0, 2**16)
        predicate = Step(
            function, merged(args, arguments), False, "auto", self._unique(name, function), version, _as_tuple(ignore)
        )
        return self._of(self._filtered.with_filter(predicate, None if folder is None else user_path(folder), workers))

    def _unique(self, name: str | None, function: Callable[..., Any]) -> str:
        """The name of a new step or filter.

        Raises:
            ValueError: it is taken.
        """
        taken = set(self._filtered.names)
        wanted = name if name is not None else name_of(function)
        unique, count = wanted, 2
        while unique in taken and name is None:
            unique, count = f"{wanted}_{count}", count + 1
        if unique in taken:
            raise ValueError(f"two steps are called {name!r}; give each its own name")
        return unique

    def __len__(self) -> int:
        return len(self._chain)

    def __getitem__(self, index: int) -> Any:
        """Sample `index` as of epoch 0 with seed 0, uncached."""
        at = position(index, len(self))
        identities = self.identities
        with native_threads(self._chain.settings.threads), identities.calling(), identities.states.making([at]):
            return self.run(self.source[at], at)

    def __iter__(self) -> Iterator[Any]:
        """Every sample as `pipe[index]`. Without this method an IndexError of a step would end a `for` silently."""
        return (self[index] for index in range(len(self)))

    def run(self, value: Any, index: int, **options: Any) -> Any:
        """Run some steps on a value; see `Chain.run`. The error of a step that skips samples is raised."""
        try:
            return self._chain.run(value, index, **options)
        except SampleSkipped as skipped:
            raise cause_of(skipped) from None

    def profile(self, **options: Any) -> Profile:
        """Measure every step on this machine; see `warmstore.pipeline.profile.profiler.profile`."""
        from warmstore.pipeline.profile.profiler import profile

        return profile(self._resolve(options.get("folder")), **options)

    def plan(self, *, profile: Profile | None = None, **options: Any) -> Plan:
        """Decide which samples to cache where; see `warmstore.pipeline.plan.planner.plan`."""
        from warmstore.pipeline.plan.planner import plan

        return plan(self._resolve(options.get("folder")), profile, **options)

    def _as_source(self) -> PipelineSource:
        """A source for a `Loader`, without caches."""
        return uncached_source(self._resolve())

    def dataset(self, plan: Plan | None = None, *, seed: int = 0) -> PipelineDataset:
        """A map-style data set that reads and fills the tiers of a plan: for torch's DataLoader, samplers and trainers.

        Its samples equal those without a plan, and those of a `loader` with the same seed in the same epoch.

        Args:
            plan: where samples are cached, from `plan`; None caches nothing.
            seed: of the random steps.

        Raises:
            ValueError: the plan is for other samples or steps, `seed` is out of range, or a step skips samples.
        """
        return PipelineDataset(self._source(plan, integer("seed", seed, 0, MOST_SEED)))

    def loader(
        self,
        plan: Plan | None = None,
        batch_size: int = 64,
        *,
        workers: int | None = None,
        seed: int = 0,
        sampler: Sampler | None = None,
        start_method: str | None = None,
        **options: Any,
    ) -> Loader:
        """A loader that reads and fills the tiers of a plan. Its batches equal those without a plan.

        Args:
            plan: where samples are cached, from `plan`; None caches nothing. Missing samples are computed and added,
                mostly in the first epoch.
            workers: processes that make batches; 0 makes them in this process, None takes the plan's number,
                and more while the plan's samples are computed, if the plan has such a number.
            seed: of the random steps, and of the default sampler.
            sampler: the order of samples; `Shuffle(seed=seed)` by default.
            start_method: of the workers: "fork", "spawn", "forkserver", or None for Python's own choice.
            options: epochs, rank, world_size, to, transform, collate, prefetch, uneven, ...: as a `Loader` has
                them.

        Raises:
            ValueError: the plan is for other samples or steps, or an option is out of range.
            NotPicklable: a step cannot be sent to workers that are not forked.
        """
        seed = integer("seed", seed, 0, MOST_SEED)
        checked_plan(plan, makes_batches=True)
        filled = plan.workers if plan is not None and workers is None else None
        workers = self._workers(plan, workers, start_method)
        source = self._source(plan, seed)
        loader = loader_of(
            source, batch_size, workers=workers, filled_workers=filled, seed=seed, sampler=sampler,
            start_method=start_method, **options,
        )  # fmt: skip
        if plan is not None:
            loader._observer = EpochObserver(source.readings, plan._add_epoch, plan._recorder)
        return loader

    def _source(self, plan: Plan | None, seed: int) -> PipelineSource:
        checked_plan(plan)
        if plan is None:
            return uncached_source(self._resolve(), seed)
        source = source_of(self._resolve(plan.folder), plan, seed)
        if (parts := plan._recorder.parts()) is not None:
            source.record_parts(parts)
        return source

    def _resolve(self, folder: str | os.PathLike[str] | None = None) -> Chain:
        """The chain of the samples that pass all filters as of now. Evaluates filters for new and changed samples.

        Args:
            folder: of a plan. Answers of filters without a folder of their own are kept there.
        """
        return self._filtered.resolve(None if folder is None else user_path(folder))

    def fill(
        self,
        plan: Plan,
        batch_size: int = 64,
        *,
        workers: int | None = None,
        start_method: str | None = None,
        progress: bool | None = None,
    ) -> FillResult:
        """Fill the tiers of a plan before training. The memory tier stays until `close`.

        Args:
            progress: show a bar; None shows one on a terminal or in a notebook.

        Returns:
            How many samples were computed, and how many were cached already.
        """
        workers = self._workers(checked_plan(plan, makes_batches=True), workers, start_method)
        source = self._source(plan, 0)
        self._hold(source)
        began = time.perf_counter()
        result = fill(source, batch_size, workers, start_method, progress)
        plan._recorder.filled(result, time.perf_counter() - began)
        return result

    def push(
        self,
        url: str | os.PathLike[str],
        plan: Plan,
        *,
        verify: bool = False,
        progress: bool | None = None,
        remote_options: Mapping[str, Any] | None = None,
        anonymous: bool = False,
    ) -> PushResult:
        """Add the samples in the tiers of a plan to a remote, which any number of hosts fill.

        Chunks with live writers wait for a later push: close loaders first. An interrupted push is resumed.

        Args:
            url: of the folder for all pipelines: s3://, gs://, az://, http(s)://, or a folder.
            verify: read what the remote has already, and send damaged chunks again.
            progress: show a bar; None shows one on a terminal or in a notebook.
            remote_options: of obstore's store, such as {"endpoint": ...}.
            anonymous: send unsigned requests.

        Raises:
            StaleCache: the URL holds something else.
            RemoteUnavailable, RemoteRefused: what the remote had before is unchanged.
        """
        from warmstore.pipeline.sharing import push

        return push(
            self._resolve(plan.folder), plan, Remote(url, remote_options, anonymous), verify=verify, progress=progress
        )

    def pull(
        self,
        url: str | os.PathLike[str],
        plan: Plan,
        *,
        progress: bool | None = None,
        remote_options: Mapping[str, Any] | None = None,
        anonymous: bool = False,
    ) -> PullResult:
        """Fetch the samples of this pipeline that a plan caches and that its tiers lack, within its budgets.

        A pulled memory tier stays until `close`. An interrupted pull is resumed. The arguments are those of `push`.

        Raises:
            Damaged: the remote's bytes are not those that were pushed.
            StaleCache, RemoteUnavailable, RemoteRefused: what was pulled before stays.
        """
        from warmstore.pipeline.sharing import pull

        pulled, source = pull(
            self._resolve(plan.folder), plan, Remote(url, remote_options, anonymous), progress=progress
        )
        self._hold(source)
        return pulled

    def sync(
        self,
        url: str | os.PathLike[str],
        plan: Plan,
        *,
        progress: bool | None = None,
        remote_options: Mapping[str, Any] | None = None,
        anonymous: bool = False,
    ) -> tuple[PullResult, PushResult]:
        """`pull` and then `push`."""
        options: dict[str, Any] = {"progress": progress, "remote_options": remote_options, "anonymous": anonymous}
        return self.pull(url, plan, **options), self.push(url, plan, **options)

    def _hold(self, source: PipelineSource) -> None:
        """Keep the memory tiers of a source until `close`."""
        self._held.append(source)
        self.closed = False
        self._register()

    def close(self) -> None:
        """Release the memory tiers that `fill` and `pull` have filled. Idempotent."""
        if not self.closed:
            self.closed = True
            held, self._held = self._held, []
            for source in held:
                source.release()
            self._unregister()

    def _after_fork(self) -> None:
        self.closed, self._held = True, []

    def _workers(self, plan: Plan | None, workers: int | None, start_method: str | None) -> int:
        """The validated number of workers. Also checks that steps can be sent to them."""
        if workers is None:
            workers = plan.fill_workers if plan is not None else min(thread_count(), _MOST_WORKERS)
        return checked_workers(self.steps, workers, start_method)


def _as_tuple(ignore: Collection[str]) -> tuple[str, ...]:
    """Ignored places; a str is a single one."""
    return (ignore,) if isinstance(ignore, str) else tuple(ignore)
