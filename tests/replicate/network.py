"""A network between a program and a remote that is a folder: it fails, loses an answer, or lets others act, when told.

Requests are counted from when a fault is set. What others do at a request is done before it, by the thread that sends
it: the request waits.
"""

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from warmstore.errors import RemoteUnavailable
from warmstore.remote.objects import Objects
from warmstore.replicate import remote_copy


class Network:
    """`down`: nothing arrives. conditional: the remote refuses to create an object twice."""

    def __init__(self, *, conditional: bool = True) -> None:
        self.down = False
        self.conditional = conditional
        self.kind = ""
        self.left = -1
        self.act: Callable[[], None] | None = None
        self.errors: list[BaseException] = []

    def set(self, kind: str, at: int, act: Callable[[], None] | None = None) -> None:
        """Set a fault at the request `at`, counted from 0.

        Args:
            kind: "before": it does not arrive. "after": its answer is lost. "twice": its answer is lost, and it is
                repeated. "kill": the process dies before it. "act": `act` is called before it. "": no fault.
        """
        self.kind, self.left, self.act = kind, at, act

    def arrives(self) -> str:
        """The fault of the request that is sent now, or ""."""
        self.left -= 1
        if self.down:
            return "before"
        if self.left != -1:
            return ""
        if self.kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.kind == "act" and self.act is not None:
            try:
                self.act()
            except BaseException as error:
                self.errors.append(error)
        return self.kind

    @contextlib.contextmanager
    def with_fault(self, kind: str, at: int, act: Callable[[], None] | None = None) -> Iterator[None]:
        """A fault for the block. What `act` raised is raised at its end."""
        self.set(kind, at, act)
        try:
            yield
        finally:
            self.set("", -1)
            if self.errors:
                raise self.errors.pop()

    def use(self, patch: pytest.MonkeyPatch) -> None:
        """Let all requests of this process go through this network."""
        network = self

        class Connected(Objects):
            @property
            def is_conditional(self) -> bool:
                return network.conditional

            async def _checked(self, request: Any, failed: str, *, missing: Any) -> Any:
                fault = network.arrives()
                if fault == "before":
                    raise RemoteUnavailable(f"{failed}: the network is down")
                if fault == "twice" and missing is False:  # a put
                    await super()._checked(request, failed, missing=missing)
                result = await super()._checked(request, failed, missing=missing)
                if fault == "after":
                    raise RemoteUnavailable(f"{failed}: the answer is lost")
                return result

        patch.setattr(remote_copy, "Objects", Connected)


def connected(**options: Any) -> Network:
    """For a child: a network that all its requests go through from now on."""
    network = Network(**options)
    network.use(pytest.MonkeyPatch())
    return network
