"""Sources that read from other sources."""
