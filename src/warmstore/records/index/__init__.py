"""The key index: users' ids as keys, and the table that says which row holds a key."""
