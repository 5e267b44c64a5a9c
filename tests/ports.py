"""Ports for servers that tests start."""

import contextlib
import random
import socket

_BELOW_EPHEMERAL = range(20_000, 32_000)


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on.

    The server binds it later. Until then the system gives it to no other socket: it lies below the ephemeral ports.
    """
    while True:
        port = random.SystemRandom().choice(_BELOW_EPHEMERAL)
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port
