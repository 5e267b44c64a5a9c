"""What goes out of this machine and comes back: signing. Knows nothing of records or artifacts."""
