"""Pipelines: steps, what is measured of them, and what of them is cached where. The public names live in `warmstore`."""
