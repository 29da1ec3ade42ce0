"""Errors, numeric formats, the environment, records, tables, formatting."""
