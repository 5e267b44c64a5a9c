"""The names of other libraries over warmstore's caches, one module a library, for programs that cannot change yet."""
