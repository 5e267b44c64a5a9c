"""Preprocessing pipelines whose steps are cached in memory and on disk, and yet give what they give uncached."""
