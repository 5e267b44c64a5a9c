"""Batches built ahead of their use, by threads or processes, and moved to where they are used."""
