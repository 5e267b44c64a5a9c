"""Stores and remotes: pushed, pulled, attached, and read block by block where they lie."""
