"""Values of samples: what kind they are, who owns their memory, and hashes that tell them apart."""
