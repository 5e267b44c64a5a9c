"""What random programs share that are compared with a model: how they are run, and what was logged meanwhile."""

import logging

from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test
from tests.slow import is_long


def run_machine(machine: type[RuleBasedStateMachine], examples: int, steps: int) -> None:
    """Run programs of at most so many steps: the same ones each time, and others in each long run."""
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            derandomize=not is_long(),
            suppress_health_check=list(HealthCheck),
        ),
    )


class KeptWarnings(logging.Handler):
    """Keeps what the library logs as a warning."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())

    def take(self) -> list[str]:
        found, self.messages = self.messages, []
        return found
