"""Tiny programs in two versions each, for `staleness`: what is edited, and whether that changes the answers."""

from benchmarks.programs.case import Case
from benchmarks.programs.edits import EDITS
from benchmarks.programs.modules import MODULE_EDITS, MODULE_NEUTRAL
from benchmarks.programs.neutral import NEUTRAL

CASES = EDITS + NEUTRAL + MODULE_EDITS + MODULE_NEUTRAL

__all__ = ["CASES", "EDITS", "MODULE_EDITS", "MODULE_NEUTRAL", "NEUTRAL", "Case"]
