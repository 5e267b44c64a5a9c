"""The log of a store: its entries, the lists of numbers they refer to, and reading both where they are damaged."""
