"""One version of a cache on the disk: rows found by key, within a limit, some of them kept in memory."""
