"""Reading a store: what is committed, where its rows lie, and rows gathered and verified."""
