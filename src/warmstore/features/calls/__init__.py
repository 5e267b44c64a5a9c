"""The arguments of a module's call: which hold a value per sample, and what else decides the outputs."""
