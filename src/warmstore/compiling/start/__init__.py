"""What `warmstore run` puts in front of the path of Python."""
