"""Filters: they leave samples out of a pipeline, by a function of each sample. See `Pipeline.filter`."""
