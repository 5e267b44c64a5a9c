"""Other formats: `conversion` makes a store of them, `export` writes the records of a store to them."""
