"""Reasons for misses: descriptions of keys, and the log of lookups."""
