"""`cached`: results of pure functions, kept on disk by the identity of the function and of its arguments."""
