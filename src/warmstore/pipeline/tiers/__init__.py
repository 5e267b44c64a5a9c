"""The tiers of a plan: folders in memory and on the disk, and the samples in them."""
