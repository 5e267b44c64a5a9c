"""What is measured of a pipeline on this machine."""
