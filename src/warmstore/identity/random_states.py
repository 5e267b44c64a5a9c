"""The states of the default random generators, which tell whether something drew from them."""

import sys
from typing import Any


def random_states() -> list[Any]:
    """What changes when something draws from the default generators of Python, NumPy or torch. Takes 50 µs."""
    import random

    states: list[Any] = [hash(random.getstate())]
    if numpy_random := sys.modules.get("numpy.random"):
        state = numpy_random.get_state(legacy=False)["state"]
        states += [state["pos"], state["key"][:2].tobytes()] if "pos" in state else [repr(state)]
    return states + states_of_torch()


def states_of_torch() -> list[bytes]:
    """What changes when something draws from the default generators of torch. Takes 2 µs, and as much for each GPU.

    The generators of GPUs keep their states in the memory of the host: nothing waits for a GPU.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        return []
    on_gpus = torch.cuda.default_generators if torch.cuda.is_initialized() else ()
    return [each.get_state().numpy().tobytes() for each in (torch.default_generator, *on_gpus)]
