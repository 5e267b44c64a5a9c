"""Sources of samples, one file a kind; `loading/source.py` has the contract."""
