"""Trials of the change points over versions: known steps in known noise, what rules find them, and what is only luck.

Contents: :mod:`.trials` measures recall and false alarms, :mod:`.rivals` holds the rules beside ours,
:mod:`.sessions` measures what sessions of equal code differ by, :mod:`.seeds` the drift over seeds.
"""
