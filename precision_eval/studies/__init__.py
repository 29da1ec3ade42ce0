"""Clients of the pipeline: sweep, sensitivity, memory plan, torch versions, tracking, comparison of own candidates."""
