"""Nested samples: their containers, their structure as JSON, their columns, and arrays that share memory."""
