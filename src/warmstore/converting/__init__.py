"""Other formats into a store and out of one. `conversion` and `export` are the two ways; `formats` has the formats."""
