"""One file a format: its name is the format's, and `open_source` opens what is in it."""
