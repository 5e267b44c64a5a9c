"""Encoders of a program: what may be registered, what counts as the same encoder, and what its digest is of."""

import copy
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from tests.pipeline import encoded
from tests.pipeline.encoded import Clip, Track

import warmstore as ws
from warmstore.pipeline.encoders.registry import REGISTRY, Registry
from warmstore.pipeline.tiers.flattening import flatten, to_bytes
from warmstore.pipeline.tiers.unflattening import Undecodable, from_bytes


@pytest.fixture(autouse=True)
def _no_encoders() -> Iterator[None]:
    yield
    for encoder in REGISTRY.registered():
        REGISTRY.remove(encoder.cls)


class Slotted:
    __slots__ = ("__hidden", "shown")

    def __init__(self, shown: Any, hidden: Any) -> None:
        self.shown, self.__hidden = shown, hidden

    def parts(self) -> Any:
        return [self.shown, self.__hidden]


class Box:
    def __init__(self, item: Any) -> None:
        self.item = item


class Grid(np.ndarray[Any, Any]):
    """A subclass of an array."""


class Group(dict[str, Any]):
    """A subclass of a dict, with an attribute."""

    def __init__(self, items: Any, name: Any) -> None:
        super().__init__(items)
        self.name = name


def group_of(parts: Any) -> Group:
    return Group(*parts)


def back(value: Any) -> Any:
    return from_bytes(to_bytes(*flatten(value)))


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ((3, encoded.encode, encoded.decode), TypeError, "takes a type; got 3"),
        ((Track, 3, encoded.decode), TypeError, "encode is a function of one argument; got 3"),
        ((Track, encoded.encode, None), TypeError, "decode is a function of one argument; got None"),
        ((dict, encoded.encode, encoded.decode), ValueError, "builtins.dict are kept without an encoder"),
        ((np.ndarray, encoded.encode, encoded.decode), ValueError, "numpy.ndarray are kept without an encoder"),
        ((type("Local", (), {}), encoded.encode, encoded.decode), ValueError, "define it at the top of a module"),
    ],
)
def test_what_cannot_be_registered(arguments: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        ws.register_encoder(*arguments)
    assert REGISTRY.registered() == []


def test_equal_must_be_a_function() -> None:
    with pytest.raises(TypeError, match="equal is a function of two values; got True"):
        ws.register_encoder(Track, encoded.encode, encoded.decode, equal=True)  # type: ignore[arg-type]


def test_only_the_very_type_has_the_encoder() -> None:
    ws.register_encoder(Track, encoded.encode, encoded.decode)
    assert vars(back(Track(1, 2, ["a"]))) == {"sound": 1, "rate": 2, "tags": ["a"]}
    with pytest.raises(ws.UnsupportedType, match=r"is a tests.pipeline.encoded.Clip.*ws.register_encoder\(Clip, "):
        flatten(Clip(1, 2))


def test_encoders_nest_and_parts_stay_shared() -> None:
    ws.register_encoder(Track, encoded.encode, encoded.decode)
    ws.register_encoder(Slotted, Slotted.parts, lambda parts: Slotted(*parts))
    sound = np.arange(6.0)
    track = Track(sound, 1)
    made = back({"x": sound, "pair": Slotted(track, [track, sound[2:]]), "track": track})
    shown, (inner, view) = made["pair"].parts()
    assert shown is inner is made["track"]
    assert shown.sound is made["x"]
    made["x"][2] = 7
    assert view[0] == 7


def test_subclasses_of_arrays_and_dicts() -> None:
    ws.register_encoder(Grid, np.asarray, lambda array: array.view(Grid))
    ws.register_encoder(Group, lambda group: [dict(group), group.name], group_of)
    made = back([np.arange(3).view(Grid), Group({"a": 1}, "b")])
    assert type(made[0]) is Grid
    assert (made[1], made[1].name) == ({"a": 1}, "b")
    shared = [1]
    ws.register_encoder(Group, lambda group: [{key: list(item) for key, item in group.items()}, ""], group_of)
    with pytest.raises(ws.UnsupportedType, match="1 shares a list with another part"):
        flatten([shared, Group({"a": shared}, "")])


@pytest.mark.parametrize("hide", [lambda array: array, lambda array: {"in": [array]}, lambda array: Slotted(array, 0)])
def test_hidden_memory_that_is_shared(hide: Callable[[Any], Any]) -> None:
    """`encode` gives a copy, so a write to the other part would not reach the decoded object."""
    array = np.arange(4.0)

    def as_copies(track: Track) -> Any:
        return [array.copy(), track.rate]

    ws.register_encoder(Track, as_copies, lambda parts: Track(hide(parts[0]), parts[1]), version="1")
    back(Track(hide(array), 1))
    with pytest.raises(ws.UnsupportedType, match="share"):
        flatten({"track": Track(hide(array), 1), "x": array[1:]})


CONSTANT = [np.arange(3), {"rate": 1}]


def held_apart(hold: Callable[[Any], Any], give: Callable[[Any], Any]) -> None:
    """Register an encoder of objects that hold a part as `hold` does, and that returns it as `give` does."""

    def encode_held(track: Track) -> Any:
        return give(track.rate)

    def decode_held(part: Any) -> Track:
        return Track(hold(part), part)

    ws.register_encoder(Track, encode_held, decode_held, version="1")


@pytest.mark.parametrize("part", [np.arange(3), [1, 2], {"a": 1}, bytearray(b"a")])
def test_what_two_objects_share(part: Any) -> None:
    """Each alone is as before, and both have copies of what was one object."""
    held_apart(lambda part: {"in": part}, copy.copy)
    pair = [Track({"in": part}, part), Track({"in": part}, part)]
    assert np.array_equal(back(pair[0]).rate, part)
    with pytest.raises(ws.UnsupportedType, match="share"):
        flatten(pair)
    held_apart(lambda part: {"in": part}, lambda part: part)
    first, second = back(pair)
    assert first.rate is second.rate is first.sound["in"] is second.sound["in"]


def test_views_that_two_objects_hide() -> None:
    x = np.arange(6)
    held_apart(lambda part: {"in": part}, np.copy)
    left, right, rest = (Track({"in": part}, part) for part in (x[1:4], x[2:], x[4:]))
    with pytest.raises(ws.UnsupportedType, match="0 and 1 share memory"):
        flatten([left, right])
    assert len(back([left, rest])) == 2


def test_what_two_objects_with_memos_share() -> None:
    """The restored ones have no memo, so nothing tells which of their parts was which."""
    shared = [1]

    def as_rate(track: Track) -> Any:
        return track.rate

    def of_rate(rate: Any) -> Track:
        return Track([[1]], rate)

    ws.register_encoder(Track, as_rate, of_rate, equal=lambda *_: True)
    with pytest.raises(ws.UnsupportedType, match="1 shares a list with another part"):
        flatten([Track([shared, ["memo"]], 1), Track([shared, ["memo"]], 2)])
    assert len(back([Track([[1], ["memo"]], 1), Track([[1], ["memo"]], 2)])) == 2


def test_what_all_objects_share_in_the_program() -> None:
    held_apart(lambda _: CONSTANT[1], lambda part: part)
    first, second = back([Track(CONSTANT[1], 1), Track(CONSTANT[1], 2)])
    assert first.sound is second.sound is CONSTANT[1]
    held_apart(lambda _: test_what_all_objects_share_in_the_program, lambda part: part)
    assert len(back([Track(test_what_all_objects_share_in_the_program, [at]) for at in range(3)])) == 3


def test_an_object_of_too_many_objects() -> None:
    held_apart(lambda part: [[at] for at in range(part)], lambda part: part)
    many = Track([[at] for at in range(11_000)], 11_000)
    assert back([many, 3, "a", many])[0].sound == many.sound
    with pytest.raises(ws.UnsupportedType, match=r"0 refers to more than 10,000 objects"):
        flatten([many, [[4]]])


def test_an_object_in_a_long_chain() -> None:
    def chain(length: int) -> Any:
        made: Any = None
        for _ in range(length):
            made = Box(made)
        return made

    held_apart(chain, lambda part: part)
    ws.register_encoder(Track, lambda track: track.rate, lambda part: Track(chain(part), part), equal=lambda *_: True)
    assert back([Track(chain(3000), 3000), [1]])[0].rate == 3000


def test_a_decoder_that_returns_another_type() -> None:
    ws.register_encoder(Track, encoded.encode, lambda parts: Clip(**parts))
    with pytest.raises(ws.UnsupportedType, match=r"differs from the value: it is a tests.pipeline.encoded.Clip"):
        flatten([Track(1, 2)])


def test_an_encoder_that_loses_the_order_of_axes() -> None:
    ws.register_encoder(Box, lambda box: box.item.tolist(), lambda items: Box(np.array(items)))
    assert back(Box(np.ones((2, 3)))).item.tolist() == [[1, 1, 1]] * 2
    with pytest.raises(ws.UnsupportedType, match="`state/item` has another order of axes in memory"):
        flatten(Box(np.ones((3, 2)).T))


def test_equal_decides() -> None:
    def as_rounded(track: Track) -> Any:
        return {**encoded.encode(track), "sound": round(track.sound, 1)}

    ws.register_encoder(Track, as_rounded, encoded.decode, equal=lambda one, other: abs(one.sound - other.sound) < 0.1)
    assert back(Track(0.25, 1)).sound == 0.2
    ws.register_encoder(Track, as_rounded, encoded.decode, equal=lambda one, other: one.sound == other.sound)
    with pytest.raises(ws.UnsupportedType, match="`equal` is false"):
        flatten(Track(0.25, 1))


def test_an_encoder_that_is_gone_or_another() -> None:
    ws.register_encoder(Track, encoded.encode, encoded.decode)
    data = to_bytes(*flatten(Track(1, 2)))
    ws.register_encoder(Track, lambda track: vars(track), encoded.decode)
    with pytest.raises(Undecodable, match=r"the encoder of tests.pipeline.encoded.Track has changed"):
        from_bytes(data)
    REGISTRY.remove(Track)
    with pytest.raises(Undecodable, match=r"no encoder of tests.pipeline.encoded.Track is registered"):
        from_bytes(data)
    ws.register_encoder(Track, encoded.encode, encoded.decode)
    assert from_bytes(data).rate == 2


def test_a_decoder_that_fails() -> None:
    works = [True]

    def decode(parts: Any) -> Track:
        if not works:
            raise RuntimeError("broken")
        return encoded.decode(parts)

    ws.register_encoder(Track, encoded.encode, decode, version="1")
    data = to_bytes(*flatten(Track(1, 2)))
    works.clear()
    with pytest.raises(Undecodable, match=r"cannot decode what it encoded: RuntimeError\('broken'\)"):
        from_bytes(data)


SOURCE = """
    OFFSET = {offset}

    class Point:
        def __init__(self, x):
            self.x = x

    def encode(point):
        return point.x + OFFSET

    def decode(x):
        return Point(x - {name})
"""


def test_the_digest_is_of_all_that_the_functions_read(program: Callable[..., ModuleType]) -> None:
    def digest(offset: int = 1, name: str = "OFFSET", version: str | None = None) -> str:
        module = program(SOURCE.format(offset=offset, name=name))
        ws.register_encoder(module.Point, module.encode, module.decode, version=version)
        found = REGISTRY.of(module.Point)
        assert found is not None
        return found.digest

    assert digest() == digest()
    assert len({digest(), digest(2), digest(1, "1"), digest(version="2")}) == 4


def test_an_encoder_without_identity_needs_a_version(program: Callable[..., ModuleType]) -> None:
    module = program("""
        import socket

        SOCKET = socket.socket()
        SOCKET.close()

        class Point:
            pass

        def encode(point):
            return SOCKET and None

        def decode(parts):
            return Point()
    """)
    ws.register_encoder(module.Point, module.encode, module.decode)
    with pytest.raises(ws.UnsupportedType, match=r"has no identity: .*pass version='1' to register_encoder"):
        flatten(module.Point())
    ws.register_encoder(module.Point, module.encode, module.decode, version="1")
    assert type(back(module.Point())) is module.Point


def test_a_module_that_is_loaded_again_replaces_its_types(program: Callable[..., ModuleType]) -> None:
    first, second = (program(SOURCE.format(offset=1, name="OFFSET")) for _ in range(2))
    registry = Registry()
    for module in (first, second):
        sys.modules[module.__name__] = module
        ws.register_encoder(module.Point, module.encode, module.decode)
        registry.take_in(REGISTRY.registered())
    assert registry.of(first.Point) is None
    assert [encoder.cls for encoder in registry.registered()] == [second.Point]


def test_a_library_is_loaded_only_for_its_own_types() -> None:
    registry = Registry()
    assert registry.of(Track) is None
    assert registry.named("PIL.Image", "Image") is not None
    assert registry.named("PIL.Image", "NoSuchType") is None
    assert registry.registered() == []
