"""Everyday programs of small size, for `coverage`: what people pass to `torch.compile`, written as they write it."""

from benchmarks.corpus import hugging_face, language, roots, sequences, tensors, training, vision
from benchmarks.corpus.program import PROGRAMS, Program

__all__ = ["PROGRAMS", "Program", "hugging_face", "language", "roots", "sequences", "tensors", "training", "vision"]
