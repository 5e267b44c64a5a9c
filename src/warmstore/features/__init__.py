"""Outputs of frozen modules, computed once per sample. The public names live in `warmstore`."""
