"""TrainerCallback: adds what caches did to the logs of transformers' Trainer."""

from typing import Any

from warmstore.callbacks.cache_meter import PREFIX, CacheMeter
from warmstore.extras import imported

_transformers = imported("transformers", "warmstore.callbacks.TrainerCallback")


class TrainerCallback(_transformers.TrainerCallback):  # type: ignore[misc, name-defined]
    """`Trainer(callbacks=[TrainerCallback()])` adds hit rates and seconds saved to what the Trainer logs.

    They are in `trainer.state.log_history` and in the printed logs. They are not in what `trainer.evaluate` returns: a
    search of hyperparameters takes the sum of that. The Trainer calls what reports to Weights & Biases, TensorBoard and
    others before the callbacks of a user; `add_to` puts this one first, so that they have them, too.

    Args:
        caches: see `CacheMeter`.
    """

    def __init__(self, caches: Any = None) -> None:
        self._given = caches
        self._meter: CacheMeter | None = None

    @classmethod
    def add_to(cls, trainer: Any, caches: Any = None) -> "TrainerCallback":
        """Add a callback to a Trainer, before those that report."""
        made = cls(caches)
        trainer.add_callback(made)
        callbacks = trainer.callback_handler.callbacks
        callbacks.insert(0, callbacks.pop())
        return made

    def on_train_begin(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        """Count from here on."""
        self._meter = CacheMeter(self._given)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **rest: Any) -> None:
        """Add what happened since the last logs."""
        figures = self._meter.figures() if self._meter is not None and state.is_local_process_zero else {}
        if figures:
            if logs is not None:
                logs.update(figures)
            if state.log_history:
                state.log_history[-1].update(figures)

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **rest: Any) -> None:
        """Take the figures from the metrics of an evaluation, which are logged by now."""
        for name in [name for name in metrics or () if name.startswith(PREFIX)]:
            del metrics[name]
