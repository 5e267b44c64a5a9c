"""Fields as typed Arrow columns, and back."""
