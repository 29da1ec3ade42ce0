"""How often the regression gate errs, beside plain asv, on the same result sets: ``python -m validation.gate``.

Conventions: a *set* is what one asv run would leave of a few cells: paired ratios of several processes, asv's own
times, drift and memory, all measured by one fresh interpreter whose children are forked, as asv's fork server does. The
code is the same in all sets, so base and head drawn from them are A/A. In the same rounds stand calls that do exactly
2 % and 5 % more work; a head with a slowdown takes one cell's figures from those. Drift ×1.5 and +5 % memory are
likewise measured of calls that really have them. Nothing is simulated but what says so.
"""
