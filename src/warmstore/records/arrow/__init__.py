"""Conversion of fields to typed Arrow columns and back."""
