"""The figures of a report: one drawing function per panel, used for the files under ``figures/`` and for the charts of
the HTML report alike.

Conventions: artists that belong to a fix carry a group id, ``mark FIX`` for what a reader points at, ``of FIX`` for the
rest, and ``text FIX`` for a label whose words the HTML report replaces.
"""
