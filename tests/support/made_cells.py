"""Cells as a plan makes them: eager on the CPU with one thread, but for what a test names."""

from precision_eval.core.cells import Cell, Options

PLACE = {"case": "attention-decode", "mode": "eager", "device": "cpu", "size": "tiny", "threads": 1}


def cell(measure, *fixes, options=None, **place):
    """A cell; words that are no place of it are options."""
    named = {name: place.pop(name) for name in PLACE if name in place}
    return Cell(measure=measure, fixes=fixes, options=options or Options(**place), **(PLACE | named))
