"""Preprocessing pipelines with steps cached in memory and on disk. Cached batches equal uncached ones bit for bit."""
