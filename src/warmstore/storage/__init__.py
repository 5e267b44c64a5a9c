"""Files as everything above uses them: atomic replacement, byte quotas, usage leases, sizes and durations as text."""
