"""Clients of the pipeline: calls compared, a memory plan, and which modules may be in half."""
