"""Work on a whole store: rewriting, verifying, filtering, sealing abandoned chunks, and listing its chunks."""
