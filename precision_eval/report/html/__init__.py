"""The HTML report of a run: one file that needs no script and no network, the answer first."""
