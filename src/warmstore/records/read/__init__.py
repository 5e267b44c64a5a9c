"""Reading a store: which rows are committed, where their bytes are in memory, and copying and checking them."""
