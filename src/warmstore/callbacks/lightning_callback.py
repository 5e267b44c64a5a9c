"""LightningCallback: logs what caches did to the loggers of a Lightning Trainer."""

from typing import Any

import torch

from warmstore.callbacks.cache_meter import CacheMeter
from warmstore.extras import imported

_lightning = imported("lightning.pytorch", "warmstore.callbacks.LightningCallback")


class LightningCallback(_lightning.Callback):  # type: ignore[misc, name-defined]
    """`Trainer(callbacks=[LightningCallback()])` logs hit rates and seconds saved at the end of every training epoch.

    They are in `trainer.callback_metrics` and in all loggers, under the names of `CacheMeter.figures`.

    Args:
        caches: see `CacheMeter`.
        every_n_steps: log every so many training steps, too.
    """

    def __init__(self, caches: Any = None, *, every_n_steps: int | None = None) -> None:
        super().__init__()
        if every_n_steps is not None and every_n_steps < 1:
            raise ValueError(f"every_n_steps is {every_n_steps}; it must be at least 1, or None")
        self._given = caches
        self._every = every_n_steps
        self._step = 0  # of the last call of `on_train_batch_end`
        self._meter: CacheMeter | None = None

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Count from here on."""
        self._meter = CacheMeter(self._given)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Count steps from that of a checkpoint on, which is loaded after `on_fit_start`."""
        self._step = trainer.global_step

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *rest: Any) -> None:
        """Log at every n-th step of the optimizer, for which several batches may be accumulated."""
        before, self._step = self._step, trainer.global_step
        if self._every is not None and self._step // self._every > before // self._every:
            self._log(trainer)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Log at the end of the epoch."""
        self._log(trainer)

    def _log(self, trainer: Any) -> None:
        figures = self._meter.figures() if self._meter is not None else {}
        if figures:
            trainer.callback_metrics.update({name: torch.tensor(figure) for name, figure in figures.items()})
            for logger in trainer.loggers:
                logger.log_metrics(figures, step=trainer.global_step)
