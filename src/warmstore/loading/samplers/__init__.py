"""Which sample stands at which place of an epoch, as a function of the place."""
