"""Batches built ahead by threads or processes, and their transfer to devices."""
