"""Which samples a rank takes at which step of an epoch, and how far an epoch has gone."""
