"""Latency, memory, drift, divergence and sound of a fix on a case."""
