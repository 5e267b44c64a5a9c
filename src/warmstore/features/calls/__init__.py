"""The arguments of a module's call: the roles of arguments, and the identity of those that are not per sample."""
