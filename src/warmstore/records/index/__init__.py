"""The key index: sample ids as 128-bit keys, and the table that maps a key to a row."""
