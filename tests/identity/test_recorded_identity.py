"""What changes in our own calls keeps counting at the value that it had before; what the program changes counts."""

import copy
import gc
import pickle
import sys
import types
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal, localcontext
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

from warmstore import identity
from warmstore.identity.call_effects import effects_of, written_by_calls
from warmstore.identity.identity import walk_over
from warmstore.identity.patches import Patches
from warmstore.identity.recorded_identity import RecordedIdentity
from warmstore.identity.walk import Walk
from warmstore.identity.watch import Watch

MEMO: dict[int, int] = {}
SETTINGS = types.SimpleNamespace(scale=2)
TABLE = np.arange(4.0)


def step(x: int) -> int:
    if x not in MEMO:
        MEMO[x] = x * SETTINGS.scale + int(TABLE[0])
    return MEMO[x]


def look(watch: Watch) -> Walk:
    return walk_over(step, name="step", watch=watch, patches=Patches())


def set_up() -> None:
    MEMO.clear()
    SETTINGS.scale = 2
    TABLE[:] = np.arange(4.0)


@pytest.fixture(autouse=True)
def as_it_was() -> Any:
    gc.collect()  # an interrupt in the finalizer of what another test has left is only printed
    yield
    set_up()


def test_what_we_fill_is_memory() -> None:
    recorded = RecordedIdentity(look)
    before = recorded.identity.digest
    for x in range(3):
        with recorded.calling():
            step(x)
        assert recorded.refresh().digest == before
    assert recorded.refresh(again=True).digest == before
    assert RecordedIdentity(look).identity.digest == before  # who looks first now knows who filled it
    MEMO[7] = 7
    assert RecordedIdentity(look).identity.digest != before


@pytest.mark.parametrize(
    "change",
    [
        lambda: MEMO.update({99: 0}),
        lambda: setattr(SETTINGS, "scale", 3),
        lambda: TABLE.__setitem__(0, 5.0),
    ],
)
def test_what_the_program_changes_counts(change: Callable[[], Any]) -> None:
    recorded = RecordedIdentity(look)
    before = recorded.identity
    with recorded.calling():
        step(1)
    change()
    after = recorded.refresh(again=True)
    assert after.digest != before.digest
    assert before.difference(after)


def test_what_is_changed_back_is_the_same() -> None:
    recorded = RecordedIdentity(look)
    before = recorded.identity.digest
    SETTINGS.scale = 3
    assert recorded.refresh().digest != before
    SETTINGS.scale = 2
    assert recorded.refresh().digest == before


def test_a_write_that_leaves_no_trace_is_found_in_turn() -> None:
    seconds = iter(range(0, 1_000_000, 1000))
    recorded = RecordedIdentity(look, clock=lambda: next(seconds))
    before = recorded.identity.digest
    TABLE[0] = 7.0
    assert any(recorded.refresh().digest != before for _ in range(10))
    assert recorded.window > 0


def test_all_who_call_a_function_share_its_memory() -> None:
    first = RecordedIdentity(look, effects=effects_of(step, "key"))
    with first.calling():
        step(5)
    assert RecordedIdentity(look, effects=effects_of(step, "key")).identity.digest == first.identity.digest
    assert effects_of(step, "another key").current is None
    assert effects_of(partial(step), "key").current is None


@pytest.mark.parametrize("twin", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_copies_carry_what_was_recorded(twin: Callable[[RecordedIdentity], RecordedIdentity]) -> None:
    recorded = RecordedIdentity(look)
    with recorded.calling():
        step(4)
    other = twin(recorded)
    assert other.identity.digest == recorded.identity.digest
    assert other.refresh(again=True).digest == recorded.identity.digest
    SETTINGS.scale = 9
    assert other.refresh().digest != recorded.identity.digest


class InterruptedAt:
    """Raises KeyboardInterrupt at the n-th line that runs in the modules that keep an identity current."""

    files = tuple(
        str(Path(identity.__file__).with_name(f"{name}.py"))
        for name in ("recorded_identity", "watch", "call_effects", "identity")
    )

    def __init__(self, line: int) -> None:
        self.left = line

    def _trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        if frame.f_code.co_filename not in self.files:
            return None
        if event == "line":
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt
        return self._trace

    def __enter__(self) -> None:
        sys.settrace(self._trace)

    def __exit__(self, *exception: object) -> None:
        sys.settrace(None)


def _is_interrupted(line: int, operation: Callable[[], Any]) -> bool:
    try:
        with InterruptedAt(line):
            operation()
    except KeyboardInterrupt:
        return True
    return False


@pytest.mark.parametrize("what", ["a value", "an array"])
def test_a_look_that_was_interrupted_anywhere_is_made_again(what: str) -> None:
    line = 0
    while True:
        line += 1
        set_up()
        recorded = RecordedIdentity(look)
        before = recorded.identity.digest
        if what == "a value":
            SETTINGS.scale = 3
        else:
            TABLE[0] = 7.0
        is_interrupted = _is_interrupted(line, partial(recorded.refresh, exactly=True))
        assert recorded.refresh(exactly=True).digest != before
        if not is_interrupted:
            break
    assert line > 100


def test_after_a_call_that_was_interrupted_anywhere_changes_count() -> None:
    def call() -> None:
        with recorded.calling():
            step(line % 3)  # all identities of this function look at what was ever in its memory

    line = 0
    while True:
        line += 1
        set_up()
        recorded = RecordedIdentity(look)
        is_interrupted = _is_interrupted(line, call)
        before = recorded.refresh(exactly=True).digest
        SETTINGS.scale = 3
        assert recorded.refresh(exactly=True).digest != before
        if not is_interrupted:
            break
    assert line > 100


LONG = list(range(20_000))


def long_step(x: int) -> int:
    return step(x) + LONG[x]


@pytest.mark.parametrize(
    "change",
    [
        lambda: TABLE.__setitem__(0, 5.0),
        lambda: LONG.__setitem__(5, LONG[5] + 1),
    ],
)
def test_what_only_exact_checks_see_is_not_an_effect_of_the_next_call(change: Callable[[], Any]) -> None:
    """A call whose memory grew took all for its own that differed after it."""
    recorded = RecordedIdentity(lambda watch: walk_over(long_step, name="step", watch=watch, patches=Patches()))
    before = recorded.identity.digest
    for x in (1, 1, 1):
        with recorded.calling():
            long_step(x)
    change()
    with recorded.calling():
        long_step(2)
    assert recorded.refresh(again=True).digest != before


@pytest.mark.parametrize(
    "change",
    [
        lambda: setattr(SETTINGS, "scale", 3),
        lambda: TABLE.__setitem__(0, 5.0),
        lambda: None,
    ],
)
@pytest.mark.parametrize("was_called", [False, True])
def test_what_the_program_changes_beside_a_call_in_a_thread_counts(
    change: Callable[[], Any], *, was_called: bool
) -> None:
    recorded = RecordedIdentity(look)
    before = recorded.identity.digest
    if was_called:
        with recorded.calling():
            step(1)

    def call() -> None:
        with recorded.calling():
            change()
            step(2)

    with ThreadPoolExecutor(1) as thread:
        thread.submit(call).result()
    after = recorded.refresh(again=True).digest
    # Calls were seen to fill the memo, or not: then it may have been the program.
    assert (after == before) == (was_called and SETTINGS.scale == 2 and TABLE[0] == 0)
    change()
    assert recorded.refresh(again=True).digest == after


@pytest.mark.parametrize("count", [0, 1000])
def test_arrays_that_a_thread_puts_into_memory_are_not_read(count: int) -> None:
    memo: dict[int, Any] = dict.fromkeys(range(10, 10 + count), 0)

    def made(x: int) -> Any:
        return memo.setdefault(x, np.full(1000, x))

    recorded = RecordedIdentity(lambda watch: walk_over(made, name="step", watch=watch, patches=Patches()))
    before = recorded.identity.digest

    def call(x: int) -> None:
        with recorded.calling():
            made(x)

    call(0)
    with ThreadPoolExecutor(1) as thread:
        thread.submit(call, 1).result()
    assert recorded.refresh(again=True).digest == before
    assert all(written_by_calls.get(id(memo[x])) is memo[x] for x in range(2))
    if not count:
        for x in range(2):
            memo[x][:] = 7  # whoever was given it may write to it
        assert recorded.refresh(again=True).digest == before


TABLES = [np.arange(4.0) for _ in range(4)]


def table_step(x: int) -> Any:
    return TABLES[0][x] + TABLES[1][x] + TABLES[2][x] + TABLES[3][x]


@pytest.mark.parametrize("number", range(4))
def test_what_is_found_in_turn_within_a_call_is_not_its_effect(number: int) -> None:
    """A pipeline checks its steps in the middle of a call, too."""
    now = [0.0]
    look = partial(walk_over, table_step, name="step", patches=Patches())
    recorded = RecordedIdentity(lambda watch: look(watch=watch), clock=lambda: now[0])
    for _ in range(3):
        with recorded.calling():
            table_step(1)
    before = recorded.refresh().digest
    TABLES[number][0] += 7
    with recorded.calling():
        for _ in TABLES:
            now[0] += 1000
            recorded.refresh()
    assert recorded.refresh(again=True).digest != before


def test_the_thread_that_makes_it_may_be_any() -> None:
    def looked_and_called() -> bool:
        recorded = RecordedIdentity(look)
        before = recorded.identity.digest
        with recorded.calling():
            step(1)
        return recorded.refresh(again=True).digest == before

    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(looked_and_called).result()


def test_settings_of_a_thread_count_as_they_are_in_the_one_that_looked_first() -> None:
    def divide() -> Decimal:
        return Decimal(1) / 3

    def elsewhere() -> str:
        with localcontext(prec=7):
            return recorded.refresh(again=True).digest

    recorded = RecordedIdentity(lambda watch: walk_over(divide, name="step", watch=watch, patches=Patches()))
    before = recorded.identity.digest
    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(elsewhere).result() == before
    assert elsewhere() != before


def test_effects_go_with_the_arguments_that_they_belong_to() -> None:
    class Box:
        pass

    one, other = Box(), Box()
    effects = effects_of(step, ("ids", 1, 2), objects=(one, other))
    assert effects_of(step, ("ids", 1, 2), objects=(one, other)) is effects
    del other
    assert effects_of(step, ("ids", 1, 2), objects=(one, Box())) is not effects


def test_a_function_that_is_gone_leaves_nothing() -> None:
    from warmstore.identity import call_effects

    def brief(x: int) -> int:
        return x

    assert effects_of(brief, "key").current is None
    number = id(brief)
    assert number in call_effects._effects
    del brief
    gc.collect()
    assert number not in call_effects._effects
