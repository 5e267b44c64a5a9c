"""Writing a store: rows that wait, the chunk that grows, and chunks sealed, merged, evicted and rewritten."""
