"""The remote of an artifact store: signed manifests, one series for each host, and the blobs that they name."""
