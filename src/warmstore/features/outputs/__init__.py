"""A module's outputs: their structure, where the samples lie in them, and the field of each leaf."""
