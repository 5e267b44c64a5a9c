"""The samples of a rank at each step of an epoch, and the position in an epoch."""
