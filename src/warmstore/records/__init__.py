"""Record stores: fields, log, chunks, snapshots, gather and the key index. The public names live in `warmstore`."""
