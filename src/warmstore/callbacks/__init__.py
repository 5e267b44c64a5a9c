"""Log what caches save: callbacks for Lightning and transformers' Trainer, and loggers for W&B and TensorBoard.

The classes that need a framework are imported when they are first asked for.
"""

from typing import TYPE_CHECKING, Any

from warmstore.callbacks.cache_meter import CacheMeter
from warmstore.callbacks.loggers import TensorBoardLogger, WandbLogger

if TYPE_CHECKING:
    from warmstore.callbacks.lightning_callback import LightningCallback
    from warmstore.callbacks.trainer_callback import TrainerCallback

__all__ = ["CacheMeter", "LightningCallback", "TensorBoardLogger", "TrainerCallback", "WandbLogger"]

_LAZY = {
    "LightningCallback": "warmstore.callbacks.lightning_callback",
    "TrainerCallback": "warmstore.callbacks.trainer_callback",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'warmstore.callbacks' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_LAZY[name]), name)
