"""The artifact store: blobs by content, an index of them, and a byte limit."""
