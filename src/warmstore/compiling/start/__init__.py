"""The folder that `warmstore run` puts first on Python's path."""
