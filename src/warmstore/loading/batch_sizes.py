from abc import ABC, abstractmethod
from typing import Any

from warmstore.loading.samplers.counter_rng import Int64


class BatchSize(ABC):
    limit: int
    lengths: Int64

    @abstractmethod
    def cut(self, lengths: Int64, final: bool) -> Int64: ...

    @abstractmethod
    def describe(self) -> dict[str, Any]: ...
