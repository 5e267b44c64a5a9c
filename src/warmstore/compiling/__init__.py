"""Compiled things, kept: an artifact store, environments and rules, frameworks pointed at it, and bundles."""
