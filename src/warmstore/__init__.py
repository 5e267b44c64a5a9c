"""warmstore stops ML training from doing the same work twice. Everything public is named here, and nothing else is."""

import sys
from typing import TYPE_CHECKING, Any

from warmstore.errors import (
    AmbiguousBatch,
    ArtifactError,
    BadArtifact,
    BadBudget,
    BadBundle,
    BadIds,
    BadIdType,
    BadRank,
    BadSource,
    BadState,
    Closed,
    CompilationFailed,
    Damaged,
    DataError,
    Diverged,
    IdentityError,
    Incompatible,
    MismatchError,
    NewerFormat,
    NoArtifact,
    NoFingerprint,
    NoSource,
    NotAStore,
    NotFoundError,
    NotInstalled,
    NotPicklable,
    NotStateless,
    NotSupportedError,
    NotTrusted,
    PositionError,
    ReadOnly,
    RemoteError,
    RemoteRefused,
    RemoteUnavailable,
    SampleSkipped,
    SchemaMismatch,
    StaleCache,
    StorageError,
    StoreExists,
    TargetExists,
    TooLarge,
    UnknownFormat,
    UnsupportedType,
    UsageError,
    WarmstoreError,
    WriteFailed,
)
from warmstore.extras import is_of_extra as _is_of_extra
from warmstore.extras import stand_in as _stand_in

if sys.byteorder != "little":
    raise ImportError(
        f"warmstore needs a little-endian machine, such as x86-64 or ARM; this one is {sys.byteorder}-endian, and the "
        "files of others would be misread here"
    )

if TYPE_CHECKING:
    from warmstore.compiling import compile_cache
    from warmstore.compiling.compile import compile  # noqa: A004
    from warmstore.converting.conversion import convert
    from warmstore.converting.export import export
    from warmstore.features.cache import FeatureCache
    from warmstore.features.cache_merging import MergeResult
    from warmstore.features.cache_stats import CacheStats
    from warmstore.features.fill_job import FillJob
    from warmstore.features.keyed.cache_versions import CacheVersion
    from warmstore.features.module import CachedModule
    from warmstore.functions.cached import cached
    from warmstore.functions.function_cache import FunctionCache, FunctionStats
    from warmstore.loading.batch_sizes import BatchSize, RowBudget, TokenBudget
    from warmstore.loading.collate import Pad
    from warmstore.loading.fill_result import FillResult
    from warmstore.loading.loader import Loader
    from warmstore.loading.mixture import Mixture
    from warmstore.loading.packing import PackRows
    from warmstore.loading.samplers.block_shuffle import BlockShuffle
    from warmstore.loading.samplers.bucketed import Bucketed
    from warmstore.loading.samplers.replacement import Uniform, Weighted
    from warmstore.loading.samplers.sampler import Sampler
    from warmstore.loading.samplers.sequential import Sequential, Window
    from warmstore.loading.samplers.shuffle import Shuffle
    from warmstore.loading.splits import folds, split
    from warmstore.loading.subset import Subset
    from warmstore.loading.trainers.batch_sampler import BatchSampler
    from warmstore.loading.trainers.dataset import Dataset, collate
    from warmstore.pipeline.dali import Dali
    from warmstore.pipeline.encoders.registry import register_encoder
    from warmstore.pipeline.pipeline import Pipeline
    from warmstore.pipeline.plan.plan import Plan
    from warmstore.pipeline.plan.plan_figures import Placement
    from warmstore.pipeline.profile.profile import Profile
    from warmstore.pipeline.steps import Step
    from warmstore.records.format.codecs import train_dictionary
    from warmstore.records.format.fields import Array, Bytes, Json, Ragged, Text
    from warmstore.records.format.value_encoding import Packed
    from warmstore.records.index.sample_keys import HashedId
    from warmstore.replicate.pull import PullResult
    from warmstore.replicate.push import PushResult
    from warmstore.replicate.record_store import RecordStore
    from warmstore.replicate.staged_write import StagedWrite

__version__ = "0.1.0"

__all__ = [
    "AmbiguousBatch",
    "Array",
    "ArtifactError",
    "BadArtifact",
    "BadBudget",
    "BadBundle",
    "BadIdType",
    "BadIds",
    "BadRank",
    "BadSource",
    "BadState",
    "BatchSampler",
    "BatchSize",
    "BlockShuffle",
    "Bucketed",
    "Bytes",
    "CacheStats",
    "CacheVersion",
    "CachedModule",
    "Closed",
    "CompilationFailed",
    "Dali",
    "Damaged",
    "DataError",
    "Dataset",
    "Diverged",
    "FeatureCache",
    "FillJob",
    "FillResult",
    "FunctionCache",
    "FunctionStats",
    "HashedId",
    "IdentityError",
    "Incompatible",
    "Json",
    "Loader",
    "MergeResult",
    "MismatchError",
    "Mixture",
    "NewerFormat",
    "NoArtifact",
    "NoFingerprint",
    "NoSource",
    "NotAStore",
    "NotFoundError",
    "NotInstalled",
    "NotPicklable",
    "NotStateless",
    "NotSupportedError",
    "NotTrusted",
    "PackRows",
    "Packed",
    "Pad",
    "Pipeline",
    "Placement",
    "Plan",
    "PositionError",
    "Profile",
    "PullResult",
    "PushResult",
    "Ragged",
    "ReadOnly",
    "RecordStore",
    "RemoteError",
    "RemoteRefused",
    "RemoteUnavailable",
    "RowBudget",
    "SampleSkipped",
    "Sampler",
    "SchemaMismatch",
    "Sequential",
    "Shuffle",
    "StagedWrite",
    "StaleCache",
    "Step",
    "StorageError",
    "StoreExists",
    "Subset",
    "TargetExists",
    "Text",
    "TokenBudget",
    "TooLarge",
    "Uniform",
    "UnknownFormat",
    "UnsupportedType",
    "UsageError",
    "WarmstoreError",
    "Weighted",
    "Window",
    "WriteFailed",
    "cached",
    "collate",
    "compile",
    "compile_cache",
    "convert",
    "export",
    "folds",
    "register_encoder",
    "split",
    "train_dictionary",
]

# Everything but the errors is imported when it is first asked for: NumPy, pyarrow and torch take time to import.
_LAZY = {
    "Array": "warmstore.records.format.fields",
    "BatchSampler": "warmstore.loading.trainers.batch_sampler",
    "BatchSize": "warmstore.loading.batch_sizes",
    "BlockShuffle": "warmstore.loading.samplers.block_shuffle",
    "Bucketed": "warmstore.loading.samplers.bucketed",
    "Bytes": "warmstore.records.format.fields",
    "CacheStats": "warmstore.features.cache_stats",
    "CacheVersion": "warmstore.features.keyed.cache_versions",
    "CachedModule": "warmstore.features.module",
    "Dali": "warmstore.pipeline.dali",
    "Dataset": "warmstore.loading.trainers.dataset",
    "FeatureCache": "warmstore.features.cache",
    "FillJob": "warmstore.features.fill_job",
    "FillResult": "warmstore.loading.fill_result",
    "HashedId": "warmstore.records.index.sample_keys",
    "Json": "warmstore.records.format.fields",
    "FunctionCache": "warmstore.functions.function_cache",
    "FunctionStats": "warmstore.functions.function_cache",
    "Loader": "warmstore.loading.loader",
    "MergeResult": "warmstore.features.cache_merging",
    "Mixture": "warmstore.loading.mixture",
    "PackRows": "warmstore.loading.packing",
    "Packed": "warmstore.records.format.value_encoding",
    "Pad": "warmstore.loading.collate",
    "Pipeline": "warmstore.pipeline.pipeline",
    "Placement": "warmstore.pipeline.plan.plan_figures",
    "Plan": "warmstore.pipeline.plan.plan",
    "Profile": "warmstore.pipeline.profile.profile",
    "PullResult": "warmstore.replicate.pull",
    "PushResult": "warmstore.replicate.push",
    "Ragged": "warmstore.records.format.fields",
    "RecordStore": "warmstore.replicate.record_store",
    "RowBudget": "warmstore.loading.batch_sizes",
    "Sampler": "warmstore.loading.samplers.sampler",
    "Sequential": "warmstore.loading.samplers.sequential",
    "Shuffle": "warmstore.loading.samplers.shuffle",
    "StagedWrite": "warmstore.replicate.staged_write",
    "Step": "warmstore.pipeline.steps",
    "Text": "warmstore.records.format.fields",
    "TokenBudget": "warmstore.loading.batch_sizes",
    "Uniform": "warmstore.loading.samplers.replacement",
    "Weighted": "warmstore.loading.samplers.replacement",
    "Window": "warmstore.loading.samplers.sequential",
    "Subset": "warmstore.loading.subset",
    "cached": "warmstore.functions.cached",
    "collate": "warmstore.loading.trainers.dataset",
    "compile": "warmstore.compiling.compile",
    "compile_cache": "warmstore.compiling",
    "convert": "warmstore.converting.conversion",
    "export": "warmstore.converting.export",
    "folds": "warmstore.loading.splits",
    "register_encoder": "warmstore.pipeline.encoders.registry",
    "split": "warmstore.loading.splits",
    "train_dictionary": "warmstore.records.format.codecs",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'warmstore' has no attribute {name!r}")
    from importlib import import_module

    try:
        module = import_module(_LAZY[name])
        value = getattr(module, name, None) or import_module(f"{_LAZY[name]}.{name}")
    except ImportError as error:
        if not _is_of_extra(error):
            raise
        return _stand_in(name, error)  # and not kept: the package may be installed meanwhile
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
