"""The torch version as an axis: what asv measured at each, what changed between them, and which change upstream did it.

Conventions: everything is read from asv's result files, or from the environments that asv makes of them. Ratios below 1
are faster; versions are ordered as numbers (2.10 after 2.9). Importing this package loads neither torch nor numpy.
"""
