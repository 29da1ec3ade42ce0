"""The experiment: a plan of cells, run by isolated workers, into records.

Contents
--------
cells
    :class:`Options`, :class:`Cell`, :class:`Outcome`: plain picklable data.
plan
    :func:`make_plan`: what a selection of workloads, fixes, modes, sizes and measures comes to.
measures
    :data:`MEASURES`, the literal list, and :func:`run_cell`, which a worker runs.
executor
    :class:`IsolatedExecutor`: every call in a fresh process.
runner
    :func:`run_plan`: cells in, records out; resumes, and survives cells that do not.

Nothing here imports torch until a cell runs.
"""
