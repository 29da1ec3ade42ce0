"""Trials of the change points over versions: known steps in known noise, and what rules find them.

Contents: :mod:`.trials` measures recall and false alarms, :mod:`.rivals` holds the rules beside ours.
"""
