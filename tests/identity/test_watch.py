"""What a watch notices without another walk, what exact checks see, and what is found in turn."""

import collections
import functools
import gc
import types
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.slow import either, thinned
from torch import nn

from warmstore.identity.identity import walk_over
from warmstore.identity.kinds import torch_objects
from warmstore.identity.settled_state import LEFT
from warmstore.identity.watch import SHARE, Watch


class Clock:
    """Seconds that pass when they are told to."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


class Config:
    def __init__(self, **values):
        vars(self).update(values)


class Other(Config):
    pass


class Slotted:
    __slots__ = ("k",)

    def __init__(self, k):
        self.k = k


def watched(thing, **options):
    watch = Watch(**options)
    walk_over(thing, watch=watch, called=False)
    return watch


def made():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)).eval().requires_grad_(False)
    model.k = 3
    model.config = Config(rate=0.5, layers=[1, 2], names={"a", "b"}, table={"x": 1}, slotted=Slotted(1))
    model.recent = collections.deque([1, 2], maxlen=3)
    model.plain = torch.ones(2)
    model.array = np.ones(3)
    model.partial = functools.partial(torch.mul, other=1)
    model.defaults = collections.defaultdict(int)
    model.hook = model[0].register_forward_hook(lambda *given: None)
    model.function, model.count = functions()
    return model


def functions():
    counted = 0

    def function(x, *, k=1):
        return x * k + counted + NUMBERS[0]

    def count():
        nonlocal counted
        counted += 1

    return function, count


NUMBERS = [1]
HOOKS = []


@pytest.fixture(autouse=True)
def _as_it_was():
    yield
    NUMBERS[:] = [1]
    while HOOKS:
        HOOKS.pop().remove()


NOTICED = {
    "attribute": lambda m: setattr(m, "k", 4),
    "equal value of another type": lambda m: setattr(m, "k", 3.0),
    "new attribute": lambda m: setattr(m, "other", 4),
    "attribute deleted": lambda m: delattr(m, "k"),
    "attribute of an object": lambda m: setattr(m.config, "rate", 0.6),
    "slot": lambda m: setattr(m.config.slotted, "k", 2),
    "element of a list": lambda m: m.config.layers.__setitem__(0, 5),
    "list grown": lambda m: m.config.layers.append(5),
    "set": lambda m: m.config.names.add("c"),
    "deque": lambda m: m.recent.append(7),
    "dict value": lambda m: m.config.table.__setitem__("x", 2),
    "dict key": lambda m: m.config.table.__setitem__("y", m.config.table.pop("x")),
    "child replaced": lambda m: m.__setitem__(1, nn.Tanh()),
    "hook": lambda m: m[0].register_forward_hook(lambda *given: None),
    "pre-hook": lambda m: m[0].register_forward_pre_hook(lambda *given: None),
    "forward": lambda m: setattr(m[0], "forward", lambda x: x),
    "parameter written": lambda m: m[0].weight.mul_(2),
    "one element written": lambda m: m[0].bias[0].mul_(2),
    "parameter replaced": lambda m: setattr(m[0], "bias", nn.Parameter(torch.ones(3))),
    "parameter's memory replaced": lambda m: setattr(m[0].weight, "data", torch.ones(3, 3)),
    "no bias any more": lambda m: setattr(m[0], "bias", None),
    "attribute of a parameter": lambda m: setattr(m[0].weight, "rate", 3),
    "buffer": lambda m: m[1].running_mean.add_(1),
    "mode": lambda m: m[1].train(),
    "tensor that is no buffer": lambda m: m.plain.add_(1),
    "array replaced": lambda m: setattr(m, "array", np.ones(3)),
    "class": lambda m: setattr(m.config, "__class__", Other),
    "class of a child": lambda m: setattr(m[1], "__class__", nn.BatchNorm2d),
    "keyword of a partial": lambda m: m.partial.keywords.__setitem__("other", 2),
    "default of a keyword": lambda m: m.function.__kwdefaults__.__setitem__("k", 2),
    "code of a function": lambda m: setattr(
        m.function, "__code__", functions()[0].__code__.replace(co_consts=(None, 7))
    ),
    "closure": lambda m: m.count(),
    "default of a dict": lambda m: setattr(m.defaults, "default_factory", float),
    "which hooks take keywords": lambda m: m[0]._forward_hooks_with_kwargs.__setitem__(m.hook.id, True),
    "hook of all modules": lambda m: HOOKS.append(nn.modules.module.register_module_forward_hook(lambda *given: None)),
    "global": lambda m: NUMBERS.append(3),
    "loaded": lambda m: m[0].load_state_dict(nn.Linear(3, 3).state_dict()),
    "through half": lambda m: m.half().float(),
}


@pytest.mark.parametrize("change", thinned(5, NOTICED))
def test_noticed_at_once(change):
    model = made()
    watch = watched(model)
    assert not watch.has_moved()
    NOTICED[change](model)
    assert watch.has_moved()


def test_a_variable_without_a_value():
    cell = types.CellType()
    watch = watched([cell])
    assert not watch.has_moved()
    cell.cell_contents = 3
    assert watch.has_moved()


class Stored:
    """An object that gives its state as text, which takes some time."""

    def __init__(self, clock, seconds):
        self.clock, self.seconds = clock, seconds
        self.values = [1]

    def __getstate__(self):
        self.clock.now += self.seconds
        return {"values": str(self.values)}


def test_a_state_that_took_long_once_is_read_in_each_check():
    clock, values, seconds = Clock(), [1], [0.02]  # another process had the processor meanwhile

    def text():
        clock.now += seconds.pop() if seconds else 0.0
        return str(values)

    watch = Watch(clock=clock)
    watch.begin()
    watch.add_state(text)
    watch.settle()
    assert not watch.has_moved(exactly=True)
    values[0] = 2
    assert watch.has_moved(exactly=True)


@pytest.mark.parametrize("is_long", [False, True])
def test_a_state_that_takes_long_to_read_is_read_in_turn(is_long):
    clock = Clock()
    stored = Stored(clock, 1.0 if is_long else 0.0)
    watch = watched(stored, clock=clock)
    del stored.values[:]
    assert watch.has_moved(exactly=True) != is_long
    clock.now += 1000.0
    assert not is_long or watch.look_in_turn()


def test_the_files_of_many_names_are_looked_at_in_turn(tmp_path):
    clock = Clock()
    paths = [str(tmp_path / f"{at}.txt") for at in range(600)]
    for path in paths[:550]:
        Path(path).write_text("a")
    for path in (paths[3], paths[570]):  # one that changes, and one that appears
        watch = watched(paths, clock=clock)
        assert not watch.has_moved(exactly=True)
        Path(path).write_text("ab")
        clock.now += 1000.0
        looks = 0
        while not (watch.has_moved(exactly=True) or watch.look_in_turn()):
            clock.now += 1000.0
            looks += 1
            assert looks < 20
        assert watch.has_moved()


class Table(dict):
    """A dict of the program."""


class Ordered(collections.OrderedDict):
    """Another one, which has an order of its own."""


@pytest.mark.parametrize(
    ("value", "change"),
    [
        (Table(a=1), lambda table: table.__setitem__("b", table.pop("a"))),
        (Ordered(a=1, b=1), lambda table: table.move_to_end("a")),
        (dict.fromkeys(range(100), "a"), lambda table: table.__setitem__(99.0, table.pop(99))),
        (np.array(["a"] * 9, object), lambda array: array.__setitem__(5, "b")),
        (np.array(["a"] * 20_000, object), lambda array: array.__setitem__(5, "b")),
        (np.array(["a"] * 20_000, object)[::2], lambda array: array.__setitem__(5, "b")),
        (np.array([("a", 1)] * 9, [("name", object), ("number", int)]), lambda array: array["number"].fill(2)),
        (np.array(["a"] * 4, object), lambda array: array.resize((2, 2), refcheck=False)),
        (np.zeros((300, 500)), lambda array: array.resize((500, 300), refcheck=False)),
        (np.zeros((300, 500)), lambda array: array.setflags(write=False)),
    ],
    ids=[
        "key",
        "order",
        "equal key",
        "object",
        "many objects",
        "strided",
        "fields",
        "form of objects",
        "form",
        "read-only",
    ],
)
def test_containers_and_large_arrays_of_all_kinds(value, change):
    watch = watched(value, clock=Clock())  # hashing takes no time, whatever else the machine does
    before = walk_over(value, called=False).facts
    assert not watch.has_moved(exactly=True)
    change(value)
    assert watch.has_moved(exactly=True)
    after = walk_over(value, watch=watch, called=False)
    assert {after.key_of(place): text for place, text in after.facts.items()} != {
        after.key_of(place): text for place, text in before.items()
    }
    assert not watch.has_moved(exactly=True)


EXACTLY = {
    "small array": lambda m: m.array.__setitem__(0, 7),
    "attribute renamed": lambda m: vars(m.config).__setitem__("other", vars(m.config).pop("slotted")),
    "hooks replaced at once": lambda m: setattr(m[0], "_forward_hooks", collections.OrderedDict()),
    "deep in a large list": lambda m: m.large.__setitem__(1000, -1),
    "memory seen in another way": lambda m: setattr(m[0].weight, "data", m[0].weight.data.t()),
    "tensor of inference mode": lambda m: torch.inference_mode()(m.frozen.mul_)(2),
    "fewer rows": lambda m: setattr(m[0].weight, "data", m[0].weight.data[:2]),
    "random state": lambda m: torch.rand(1, generator=m.generator),
    "bytes": lambda m: m.bytes.__setitem__(0, 7),
}


@pytest.mark.parametrize("change", EXACTLY)
def test_seen_by_exact_checks(change):
    model = made()
    model.frozen = torch.inference_mode()(torch.ones)(3)
    model.large, model.generator, model.bytes = [*range(2000)], torch.Generator(), bytearray(10)
    watch = watched(model)
    assert not watch.has_moved(exactly=True)
    EXACTLY[change](model)
    assert watch.has_moved(exactly=True)


class Scripted(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(2, 2)
        self.rate = 2.0
        self.sizes = [1, 2]

    def forward(self, x):
        return self.inner(x) * self.rate + self.sizes[0]


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
@pytest.mark.parametrize(
    "change",
    [
        lambda m: setattr(m, "rate", 3.0),
        lambda m: setattr(m, "sizes", [3, 2]),
        lambda m: setattr(m.inner, "weight", nn.Parameter(torch.ones(2, 2))),
    ],
)
def test_attributes_of_scripted_modules(change):
    module = torch.jit.script(Scripted())
    watch = watched(module)
    assert not watch.has_moved(exactly=True)
    change(module)
    assert watch.has_moved(exactly=True)


@pytest.mark.slow
def test_memory_that_was_freed_and_handed_out_again():
    model = nn.Linear(512, 512, bias=False).requires_grad_(False)
    watch = watched(model)
    for _ in range(20):
        del model.weight
        gc.collect()
        model.weight = nn.Parameter(torch.rand(512, 512), requires_grad=False)
        assert watch.has_moved()
        walk_over(model, watch=watch, called=False)


def test_memory_of_a_tensor_that_was_freed_and_handed_out_again():
    """Without a word from the tensor, which stays: the address alone says that it was replaced."""
    model = nn.Linear(512, 512, bias=False).requires_grad_(False)
    for _ in range(either(2, 10)):
        watch = watched(model)
        model.weight.data = torch.empty(1)
        gc.collect()
        model.weight.data = torch.rand(512, 512)  # where the first one was, if that is free
        assert watch.has_moved()


def test_texts_are_remembered_while_nothing_is_written(monkeypatch):
    hashed = []
    text = torch_objects.tensor_text
    monkeypatch.setattr(torch_objects, "tensor_text", lambda value: hashed.append(value) or text(value))
    model = nn.Sequential(*[nn.Linear(100, 100) for _ in range(3)]).requires_grad_(False)
    watch = watched(model)
    assert len(hashed) == 6
    model[1].weight.add_(1)
    walk_over(model, watch=watch, called=False)
    large = [value for value in hashed[6:] if value.nbytes > 10_000]  # small ones are hashed each time
    assert len(large) == 1
    assert large[0] is model[1].weight


class TestInTurn:
    """Writes that leave no trace are found when their turn comes, in a hundredth of the time."""

    @pytest.mark.parametrize(
        "write", [lambda m: m[0].weight.data.add_(1), lambda m: m[0].weight.numpy().__setitem__((0, 0), 9.0)]
    )
    def test_found_within_one_round(self, write):
        clock, model = Clock(), made()
        watch = watched(model, clock=clock)
        write(model)
        assert not watch.has_moved(exactly=True)
        looks = 0
        while not watch.look_in_turn():
            clock.now += 1.0
            looks += 1
            assert looks < 20
        assert watch.has_moved()
        facts = {
            walk.key_of(place): text for walk in [walk_over(model, watch=watch)] for place, text in walk.facts.items()
        }
        assert facts["@0:|.0.weight"].endswith(text_of(model[0].weight))
        assert not watch.has_moved()

    def test_no_more_than_a_hundredth_of_the_time(self):
        clock = Clock()
        model = nn.Linear(2, 2, bias=False)
        watch = watched(model, clock=clock)
        hashed = []

        def slow(value):
            hashed.append(value)
            clock.now += 0.5
            return "the same"

        for content in watch._contents.values():
            content.text, content.make = "the same", slow
        for _ in range(1000):
            clock.now += 1.0
            assert not watch.look_in_turn()
        assert 0.5 * len(hashed) <= SHARE * (clock.now - 100) + 0.5
        assert len(hashed) > 10

    def test_a_pause_allows_one_round_and_no_more(self):
        clock = Clock()
        model = nn.ModuleList([nn.Linear(8, 8, bias=False) for _ in range(5)])
        watch = watched(model, clock=clock)
        hashed = []
        for content in watch._contents.values():
            content.make = lambda value: hashed.append(value) or setattr(clock, "now", clock.now + 1e-3) or "x"
            content.text = "x"
        clock.now += 1e6
        for _ in range(100):
            watch.look_in_turn()
        assert 1 <= len(hashed) <= 20

    def test_the_window_is_the_time_that_one_round_takes(self):
        model = nn.Linear(1024, 1024)
        watch = watched(model)
        fastest, slowest = 2e11, 1e6  # bytes a second
        assert model.weight.nbytes / fastest / SHARE < watch.window < model.weight.nbytes / slowest / SHARE + 10
        assert watched(nn.Identity()).window < watch.window + 10


def text_of(tensor):
    return torch_objects.tensor_text(tensor).rpartition(" ")[2]


class TestWhatCallsLeave:
    def test_it_is_not_hashed_and_does_not_count(self):
        model = made()
        watch = watched(model)
        model.last = torch.rand(4)
        with watch.after_call(weights_too=False):
            walk = walk_over(model, watch=watch, called=False)
        assert walk.facts[walk.start + ".last"] == LEFT
        model.last.add_(1)
        assert not watch.has_moved(exactly=True)
        model.last = torch.rand(4)
        assert watch.has_moved()
        walk = walk_over(model, watch=watch, called=False)
        assert walk.facts[walk.start + ".last"].startswith("tensor ")

    def test_weights_count_unless_told(self):
        for weights_too, expected in ((False, "tensor "), (True, LEFT)):
            model = made()
            watch = watched(model)
            model[0].weight.add_(1)
            model.plain.add_(1)
            with watch.after_call(weights_too=weights_too):
                walk = walk_over(model, watch=watch, called=False)
            assert walk.facts[walk.start + ".0.weight"].startswith(expected)
            assert walk.facts[walk.start + ".plain"] == LEFT

    def test_arrays_that_are_written_to(self):
        model = made()
        watch = watched(model)
        model.array[0] = 7
        with watch.after_call(weights_too=False):
            walk = walk_over(model, watch=watch, called=False)
        assert walk.facts[walk.start + ".array"] == LEFT


def test_attributes_that_are_made_at_each_read_have_not_moved():
    """Those of Cython's functions are, such as the line number of the code of `np.random.default_rng`."""

    class Counted:
        __slots__ = ()
        name = property(lambda self: "".join(["a", "b" * 300]))

    value = Counted()
    text = ["", "a" + "b" * 300]
    watch = Watch()
    watch.begin()
    watch.add_cell(lambda: value.name)
    watch.add_cell(lambda: int(text[0] or 1_000_000))
    watch.settle()
    assert value.name is not value.name
    assert not watch.has_moved()
    text[0] = "1000001"
    assert watch.has_moved()
