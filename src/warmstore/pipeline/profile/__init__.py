"""Measurements of a pipeline on this machine."""
