"""The torch version as an axis: what asv measured at each, what changed between them, and which change upstream did it.

Conventions: everything is read from asv's result files, or from the environments that asv makes of them. Ratios below 1
are faster; versions are ordered as numbers (2.10 after 2.9). Importing this package loads neither torch nor numpy.

Contents
--------
results
    asv's result folders, as frozen data.
series
    Values of one metric over torch versions or commits, and their noise.
changes
    Change points with significance.
drift_seeds
    Drift over several seeds, which decides about changes that one seed cannot.
operations
    What torch's own operations do with mixed dtypes, per version.
statuses
    Where a status turns over.
upstream
    Release dates of torch, and the changes in torch that explain what is seen.
story, telling
    All of it for one folder, which is what the page shows, and how it is put together.
table, export
    The same as rows of text, as Markdown, JSON and CSV.
sweep_plan, sweep_room, sweep_rounds, sweep_costs
    A sweep over torch versions: what is to do, its disk, its rounds, what it took.
"""
