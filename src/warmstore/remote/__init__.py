"""What goes out of this machine and comes back: object stores and signing. Knows nothing of records or artifacts."""
