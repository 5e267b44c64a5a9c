"""A module's outputs: their structure, the dimensions of samples, and the field of each leaf."""
