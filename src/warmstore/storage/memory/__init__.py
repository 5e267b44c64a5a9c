"""Memory: files mapped for reading and writing, one address space for all chunks, and buffers that are used again."""
