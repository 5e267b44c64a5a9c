"""The private folder that one process's compilers work in, its limit, and what is taken from it."""
