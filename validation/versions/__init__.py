"""Trials of the change points over versions: known steps in known noise, what rules find them, and what is
only luck.
"""
