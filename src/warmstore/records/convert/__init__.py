"""Other formats into a store and out of one. One file a format; `conversion` and `export` are the two ways."""
