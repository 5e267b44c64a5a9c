"""Nested samples: flatten, unflatten, spec, stack."""
