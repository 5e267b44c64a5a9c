"""Rows as they are stored: store.json, fields, codecs, checksums, and the conversion of values to bytes and back."""
