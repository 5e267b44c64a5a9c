"""Pipeline: a source of samples and the steps that each goes through."""

from collections.abc import Callable
from typing import Any, final

from warmstore.errors import BadSource
from warmstore.pipeline.steps import Caching, Step, deterministic, name_of


@final
class Pipeline:
    """A source and steps; `pipe[index]` computes one sample, uncached.

    Immutable: `step` returns another pipeline.

    Args:
        source: anything with `__len__` and `__getitem__`: a list of paths, a RecordStore, an array, a Hugging Face
            Dataset.

    Raises:
        BadSource: no sequence.
    """

    def __init__(self, source: Any, steps: tuple[Step, ...] = ()) -> None:
        if not (hasattr(source, "__len__") and hasattr(source, "__getitem__")):
            raise BadSource(f"a {type(source).__name__} is no source of samples: it needs __len__ and __getitem__")
        self.source = source
        self.steps = steps

    def step(
        self,
        function: Callable[..., Any],
        *,
        random: bool = False,
        cache: Caching = "auto",
        name: str | None = None,
        **arguments: Any,
    ) -> "Pipeline":
        """This pipeline with one more step; see `Step`."""
        taken = {step.name for step in self.steps}
        wanted = name if name is not None else name_of(function)
        unique, count = wanted, 2
        while unique in taken and name is None:
            unique, count = f"{wanted}_{count}", count + 1
        if unique in taken:
            raise ValueError(f"two steps are called {name!r}; give each its own name")
        return Pipeline(self.source, (*self.steps, Step(function, arguments, random, cache, unique)))

    @property
    def cacheable(self) -> int:
        """Steps before the first random one."""
        return deterministic(self.steps)

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> Any:
        """Sample `index` as of epoch 0 with seed 0, uncached."""
        at = range(len(self))[index]
        return self.run(self.source[at], at)

    def run(
        self, value: Any, index: int, *, epoch: int = 0, seed: int = 0, first: int = 0, last: int | None = None
    ) -> Any:
        """Send a value through the steps [first, last).

        Args:
            value: what the steps before `first` made of sample `index`; of none of them, what the source holds.
        """
        for number, step in enumerate(self.steps[first:last], first):
            value = step(value, epoch, seed, index, number)
        return value
