"""Runs steps on samples, finds writes to memory outside a sample, and undoes them."""
