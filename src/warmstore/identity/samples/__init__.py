"""Identities of the samples of a source."""
