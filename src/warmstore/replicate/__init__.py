"""Stores at remotes: push, pull, attach, and reading block by block."""
