"""Everything that warmstore keeps on a machine, of all kinds: found, measured, checked, compared and removed."""
