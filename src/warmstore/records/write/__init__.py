"""Writing a store: pending rows, the chunk of this process, and the end of chunks by merging and eviction."""
