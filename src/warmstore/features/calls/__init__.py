"""The arguments of a module's call: which are per sample, and the identity of the others."""
