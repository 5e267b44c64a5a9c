"""Encoders of NumPy's scalars of text and bytes: what an element of an array of text is."""

import numpy as np

from warmstore.pipeline.encoders.encoder import Encoder

ENCODERS = [
    Encoder(np.str_, str, np.str_, version="1", is_own=True, is_mutable=False),
    Encoder(np.bytes_, bytes, np.bytes_, version="1", is_own=True, is_mutable=False),
]
