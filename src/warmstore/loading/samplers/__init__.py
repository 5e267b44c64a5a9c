"""Samplers: the sample at a place of an epoch, as a function of the place."""
