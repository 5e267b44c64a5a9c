"""Train a Flax model from a record store, stop in the middle, and go on exactly: the losses are those of one run.

python examples/flax_training.py FOLDER
"""

import json
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen

import warmstore as ws

SAMPLES, BATCH = 1_000, 128


class Classifier(linen.Module):
    """Two layers."""

    @linen.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return linen.Dense(10)(linen.relu(linen.Dense(64)(x.reshape(len(x), -1))))


def make_store(path: Path) -> ws.RecordStore:
    """Images of ten classes; labels as int32, which JAX keeps unless it is told to use 64 bits."""
    fields = {"image": ws.Array("float32", (8, 8)), "label": ws.Array("int32")}
    with ws.RecordStore.create(path, fields) as store:
        rng = np.random.default_rng(0)
        labels = rng.integers(0, 10, SAMPLES, np.int32)
        images = rng.normal(size=(SAMPLES, 8, 8)).astype(np.float32)
        images[np.arange(SAMPLES), labels % 8] += 2 + labels[:, None] // 8
        store.extend({"image": images, "label": labels})
    return ws.RecordStore.open(path)


def make_loader(store: ws.RecordStore) -> ws.Loader:
    """JAX arrays, put on the device ahead. Padded batches all have one shape: nothing is compiled twice."""
    return ws.Loader(store, BATCH, ws.Shuffle(seed=0), epochs=3, uneven="full", to="jax")


model, optimizer = Classifier(), optax.adam(1e-2)


@jax.jit
def train_step(state: Any, batch: dict[str, jax.Array]) -> tuple[Any, jax.Array]:
    """One step; samples that were repeated to fill the batch do not count."""

    def loss_of(parameters: Any) -> jax.Array:
        logits = model.apply(parameters, batch["image"])
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"])
        return jnp.sum(losses * batch["valid"]) / jnp.sum(batch["valid"])

    parameters, moments = state
    loss, gradients = jax.value_and_grad(loss_of)(parameters)
    updates, moments = optimizer.update(gradients, moments)
    return (optax.apply_updates(parameters, updates), moments), loss


def main(folder: str) -> None:
    """Train, with a checkpoint in the middle of an epoch; train again from there; compare."""
    store = make_store(Path(folder) / "images")
    parameters = model.init(jax.random.key(0), jnp.zeros((1, 8, 8)))
    state = (parameters, optimizer.init(parameters))
    losses, checkpoint = [], None
    with make_loader(store) as loader:
        for step, batch in enumerate(loader.stream(), 1):
            state, loss = train_step(state, batch)
            losses.append(float(loss))
            if step == 11:
                checkpoint = state, json.dumps(loader.state_dict())
    assert checkpoint is not None
    state, saved = checkpoint
    again = []
    with make_loader(store) as loader:
        loader.load_state_dict(json.loads(saved))
        for batch in loader.stream():
            state, loss = train_step(state, batch)
            again.append(float(loss))
    print(f"{len(losses)} steps, loss {losses[0]:.2f} to {losses[-1]:.2f}")
    print(f"resumed after 11 steps: {'the same losses' if again == losses[11:] else 'other losses'}")


if __name__ == "__main__":
    main(sys.argv[1])
