"""Everything that samples are read from, one file a kind; `source` has the contract."""
