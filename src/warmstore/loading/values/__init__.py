"""Values of samples: their types, the ownership of their memory, and hashes of them."""
