"""The private folder of one process's compilers: its quota, and the copying of artifacts from and into the store."""
