"""Memory: what changes while we call a thing keeps the value that it had before; what the program changes counts."""

import copy
import gc
import os
import pickle
import threading
import weakref
from contextlib import nullcontext
from functools import partial
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import nn

from warmstore.identity.call_effects import effects_of
from warmstore.identity.identity import walk_over
from warmstore.identity.recorded_identity import RecordedIdentity
from warmstore.storage.threads import ANY_THREAD


def look(thing, watch):
    return walk_over(thing, name="module", watch=watch, called=False, draws=False)


def recorded(thing, clock=lambda: 0.0):
    """No time passes: nothing is found in turn."""
    effects = effects_of(thing, ())
    return RecordedIdentity(partial(look, thing), None, effects, is_strict=True, caller=ANY_THREAD, clock=clock)


class Remembering(nn.Module):
    """Counts calls, keeps what it was given and made, and sets attributes when it is called first."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.a = nn.Linear(3, 3).requires_grad_(False)
        self.calls = 0
        self.memo = {}
        self.seen = set()
        self.scratch = np.zeros(3)
        self.option = 1

    def forward(self, x):
        self.calls += 1
        self.memo[len(x)] = self.calls
        self.seen.add(len(x))
        self.last = x
        self.scratch[:] = self.calls
        if self.calls == 3:
            self.late = nn.functional.relu
        return self.a(x)


TABLES: dict[int, torch.Tensor] = {}


class CountingAll(nn.Module):
    """Counts in its class, and fills a global."""

    calls = 0

    def forward(self, x):
        CountingAll.calls += 1
        TABLES[CountingAll.calls] = torch.rand(2)
        return x


def call(one, model, rows=2):
    with one.calling():
        return model(torch.rand(rows, 3))


class TestOwnCalls:
    def test_change_nothing(self):
        model = Remembering()
        one = recorded(model)
        before = one.identity
        for rows in (2, 3, 2, 4, 5):
            call(one, model, rows)
            assert one.refresh(exactly=True) == before

    def test_of_another_who_watches_the_same_thing(self):
        model = Remembering()
        one, other = recorded(model), recorded(model)
        before = one.identity
        for caller in (one, other, one):
            call(caller, model)
            assert one.refresh(exactly=True) == other.refresh(exactly=True) == before

    def test_that_fail_have_memory_too(self):
        model = Remembering()
        one = recorded(model)
        before = one.identity
        with pytest.raises(RuntimeError), one.calling():
            model(torch.rand(2, 7))
        assert model.calls == 1
        assert one.refresh() == before

    def test_later_ones_find_it_as_it_was(self):
        """Who watches a thing that others have called knows what it was before."""
        model = Remembering()
        one = recorded(model)
        before = one.identity
        call(one, model)
        del one
        gc.collect()
        assert recorded(model).identity == before

    def test_are_known_to_others_who_read_what_they_have_changed(self):
        """Globals and attributes of classes belong to no module."""
        one = recorded(CountingAll())
        before = one.identity
        call(one, CountingAll())
        other = recorded(CountingAll())
        assert other.identity.digest == before.digest
        call(other, CountingAll())
        assert one.refresh(exactly=True).digest == other.refresh(exactly=True).digest == before.digest
        CountingAll.calls += 1
        assert recorded(CountingAll()).identity.digest != before.digest
        assert one.refresh().digest != before.digest

    def test_weights_are_no_memory(self):
        model = nn.BatchNorm1d(3).requires_grad_(False)
        one = recorded(model)
        before = one.identity
        call(one, model)
        assert one.refresh() != before
        assert "running_mean" in before.difference(one.refresh())  # which it writes without a trace

    def test_buffers_that_are_not_saved_are_memory(self):
        class Rotary(nn.Module):
            def forward(self, x):
                self.register_buffer("table", torch.arange(float(len(x))), persistent=False)
                return x

        model = Rotary()
        model.register_buffer("table", torch.zeros(1), persistent=False)
        one = recorded(model)
        before = one.identity
        call(one, model)
        assert one.refresh() == before


class TestTheProgram:
    CHANGES: ClassVar = {
        "counter": lambda m: setattr(m, "calls", 99),
        "memo": lambda m: m.memo.__setitem__(2, -1),
        "memo grown": lambda m: m.memo.__setitem__("x", -1),
        "memo emptied": lambda m: m.__setattr__("memo", {7: 7}),
        "what was kept": lambda m: setattr(m, "last", torch.rand(3)),
        "set": lambda m: m.seen.add(-1),
        "option": lambda m: setattr(m, "option", 2),
        "weights": lambda m: m.a.weight.add_(1),
    }

    @pytest.mark.parametrize("change", CHANGES)
    def test_counts(self, change):
        model = Remembering()
        one = recorded(model)
        before = one.identity
        call(one, model)
        assert one.refresh() == before
        self.CHANGES[change](model)
        assert one.refresh() != before
        call(one, model)
        assert one.refresh() != before

    def test_changed_back_is_fine(self):
        model = Remembering()
        one = recorded(model)
        before = one.identity
        call(one, model)
        for value, same in ((99, False), (1, True), (99, False), (0, True)):  # as our call left it, and as it was
            model.calls = value
            assert (one.refresh() == before) == same
        model.memo.clear()
        assert one.refresh() == before
        model.option = 2
        assert one.refresh() != before
        model.option = 1
        assert one.refresh() == before

    def test_what_it_writes_into_what_it_gave_is_no_change(self):
        """Inputs and outputs that a hook or the module has kept are the caller's to write to."""
        model = Remembering()
        one = recorded(model)
        before = one.identity
        x = torch.rand(2, 3)
        for _ in range(3):
            with one.calling():
                model(x)
            x.mul_(2)
            assert one.refresh(exactly=True) == before

    def test_says_what(self):
        model = Remembering()
        one = recorded(model)
        before = one.identity
        call(one, model)
        model.option = 2
        assert before.difference(one.refresh()) == "`module.option` was 1, is 2"


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
class TestCopies:
    def test_carry_what_was_recorded(self, copied):
        model = Remembering()
        one = recorded(model)
        before = one.identity
        call(one, model)
        twin, its = copied((one, model))
        assert twin.refresh() == before
        call(twin, its)
        assert its.calls == 2
        assert twin.refresh() == one.refresh() == before

    def test_watch_their_own(self, copied):
        model = Remembering()
        one = recorded(model)
        before = one.identity
        twin, its = copied((one, model))
        its.option = 2
        assert twin.refresh() != before
        assert one.refresh() == before


def test_what_changes_while_a_thread_calls_is_memory_whoever_looks():
    model = Remembering()
    one = recorded(model)
    before = one.identity
    inside, go_on = threading.Event(), threading.Event()

    def hook(*given):
        inside.set()
        go_on.wait(120)

    model.a.register_forward_hook(hook)
    before = one.refresh()
    thread = threading.Thread(target=call, args=(one, model))
    thread.start()
    assert inside.wait(120)
    assert one.refresh() == before
    go_on.set()
    thread.join()
    assert one.refresh() == before


class Last:
    """An attribute that is read after the others."""

    def __init__(self):
        self.meanwhile = []

    def __identity__(self):
        while self.meanwhile:
            self.meanwhile.pop()()
        return "last"


@pytest.mark.parametrize("is_ending", [True, False])
def test_what_a_call_changes_while_another_one_looks_is_memory(*, is_ending):
    """It was the program's change from then on, of which nobody knew: the module had another identity."""
    model = Remembering()
    model.z = Last()
    one = recorded(model)
    before = one.identity
    call(one, model)
    with one.calling():
        with one.calling() if is_ending else nullcontext():
            model.memo["one"] = 1
            model.z.meanwhile.append(lambda: model.memo.update(other=2))
        assert one.refresh() == before
        assert model.memo["other"] == 2
    assert one.refresh() == before
    assert one.refresh(again=True) == before
    model.memo["program"] = 3
    assert one.refresh() != before


@pytest.mark.forks
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning")
def test_a_forked_child_does_not_wait_for_threads_of_its_parent():
    one = recorded(Remembering())
    go_on = threading.Event()

    def hold():
        with one.effects.lock:
            held.set()
            go_on.wait(120)

    held = threading.Event()
    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(120)
    child = os.fork()
    if not child:
        one.refresh()
        os._exit(7)
    go_on.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_nothing_is_kept_alive():
    model = Remembering()
    model.hook = model.forward
    one = recorded(model)
    call(one, model)
    gone = weakref.ref(model)
    del one, model
    gc.collect()
    assert gone() is None


def test_in_turn_all_is_looked_at():
    """What no container shows, such as a method put into an installed class, is found in turn."""

    class Clock:
        now = 0.0

        def __call__(self):
            return self.now

    clock = Clock()
    model = nn.Sequential(nn.Softplus())
    one = recorded(model, clock=clock)
    before = one.identity
    forward = nn.Softplus.forward
    try:
        nn.Softplus.forward = lambda self, x: -x
        for _ in range(5):
            clock.now += 100
            if one.refresh() != before:
                break
        else:
            raise AssertionError
    finally:
        nn.Softplus.forward = forward
