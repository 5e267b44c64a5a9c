"""What lies on the disk: the log and its entries, store.json, fields, codecs, checksums, and values as bytes."""
