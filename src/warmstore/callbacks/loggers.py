"""Loggers that take the object of a tracker: a run of Weights & Biases, or a writer of TensorBoard.

Neither library is imported here. A tracker that fails does not stop the program.
"""

import logging
from typing import Any

from warmstore.callbacks.cache_meter import CacheMeter

_log = logging.getLogger("warmstore")


class WandbLogger:
    """Logs what caches did to a run of Weights & Biases, or to any object with `log(dict, step=)`.

    Args:
        run: what `wandb.init()` returns; or the module `wandb`, for the current run.
        caches: see `CacheMeter`.
    """

    def __init__(self, run: Any, caches: Any = None) -> None:
        if not callable(getattr(run, "log", None)):
            raise TypeError(f"a run has a method log, as what wandb.init() returns; got {run!r:.80}")
        self._run = run
        self._meter = CacheMeter(caches)

    def log(self, step: int | None = None) -> dict[str, float]:
        """Log what happened since the last call, at the end of an epoch or every some steps. Returns the figures."""
        figures = self._meter.figures()
        if figures:
            _quietly(lambda: self._run.log(figures) if step is None else self._run.log(figures, step=step))
        return figures


class TensorBoardLogger:
    """Logs what caches did as scalars of TensorBoard.

    Args:
        writer: a `torch.utils.tensorboard.SummaryWriter`, or any object with `add_scalar(name, value, step)`.
        caches: see `CacheMeter`.
    """

    def __init__(self, writer: Any, caches: Any = None) -> None:
        if not callable(getattr(writer, "add_scalar", None)):
            raise TypeError(f"a writer has a method add_scalar, as SummaryWriter; got {writer!r:.80}")
        self._writer = writer
        self._meter = CacheMeter(caches)

    def log(self, step: int | None = None) -> dict[str, float]:
        """Log what happened since the last call, at the end of an epoch or every some steps. Returns the figures."""
        figures = self._meter.figures()
        for name, value in figures.items():
            _quietly(lambda name=name, value=value: self._writer.add_scalar(name, value, step))
        return figures


def _quietly(log: Any) -> None:
    try:
        log()
    except Exception as error:  # trackers raise anything, of the network above all
        _log.warning("the figures of caches are not logged: %r", error)
