"""The compile cache: an artifact store, rules for where artifacts are usable, hooks on compilers, and bundles."""
