"""Rules of values that are not inspected: those that make no difference to results, and those without a fixed state.

Locks, threads and loggers are inert. Generators, open files and queues are refused, with a reason for the user.
"""

from __future__ import annotations

import io
import logging
import mmap
import os
import queue
import threading
import types
import warnings
from typing import Any

from warmstore.identity.kinds.registry import Rule, inert, rule
from warmstore.identity.places import Place
from warmstore.identity.walk import Walk

_INERT_MODULES = frozenset(
    ("multiprocessing.synchronize", "concurrent.futures.thread", "concurrent.futures.process", "logging.handlers")
)
_INERT_CLASSES = frozenset((("tqdm.std", "TqdmDefaultWriteLock"), ("tqdm._monitor", "TMonitor")))

rule(
    type(threading.Lock()), type(threading.RLock()), threading.Condition, threading.Semaphore,
    threading.BoundedSemaphore, threading.Barrier, threading.Thread, logging.Logger, logging.RootLogger,
    type(warnings.catch_warnings()), types.TracebackType,
)(inert)  # fmt: skip


@rule(threading.Event)
def _event(walk: Walk, place: Place, value: Any) -> None:
    inert(walk, place, value)
    walk.if_named(("is_set",), place, lambda: walk.state(place + ".is_set", lambda: str(value.is_set())))


@rule(logging.LoggerAdapter)
def _logger_adapter(walk: Walk, place: Place, value: Any) -> None:
    inert(walk, place, value)
    walk.watch_item(vars(value), "extra")
    walk.if_named(("extra",), place, lambda: walk.whole(place + ".extra", value.extra))


def is_inert(kind: type) -> bool:
    """Whether objects of a type are inert because of the module that defines the type."""
    return kind.__module__ in _INERT_MODULES or (kind.__module__, kind.__name__) in _INERT_CLASSES


def _refused(reason: str) -> Rule:
    def refuse(walk: Walk, place: Place, value: Any) -> None:
        walk.cannot_tell(place, reason)

    return refuse


rule(types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType)(
    _refused("the items of a generator are unknown before it runs")
)
rule(types.FrameType)(_refused("a frame changes as the program runs"))
rule(io.TextIOWrapper, io.BufferedReader, io.BufferedWriter, io.BufferedRandom, io.FileIO)(
    _refused("an open file has a position and a content that change; pass its path")
)
rule(queue.Queue, queue.SimpleQueue, queue.LifoQueue, queue.PriorityQueue)(_refused("a queue changes as it is used"))
rule(threading.local)(_refused("a threading.local differs in each thread"))
rule(mmap.mmap)(_refused("the content of a memory map may change; pass the path of the file"))
rule(os._Environ)(_refused("the whole environment differs between processes; read variables by constant names"))
