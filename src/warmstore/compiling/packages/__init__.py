"""Packages of compiled frames: recording and restoring them with Dynamo."""
