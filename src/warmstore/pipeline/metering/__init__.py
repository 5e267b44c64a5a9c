"""Measurements of epochs while they run, by the terms of a plan's prediction."""
