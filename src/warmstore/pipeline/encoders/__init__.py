"""Encoders: how samples keep values of types that are neither arrays, text, numbers nor containers of these."""
