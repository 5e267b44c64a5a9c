"""Hooks on the caches of torch and JAX, and profiles of compiler options."""
