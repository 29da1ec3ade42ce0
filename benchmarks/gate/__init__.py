"""How often the regression gate errs, beside plain asv, on the same result sets: ``python -m benchmarks.gate``.

Conventions: a *set* is what one asv run would leave of a few cells: paired ratios of several processes, asv's own
times, drift and memory, all measured by one fresh interpreter whose children are forked, as asv's fork server does. The
code is the same in all sets, so base and head drawn from them are A/A. In the same rounds stand calls that do exactly
2 % and 5 % more work; a head with a slowdown takes one cell's figures from those. Drift ×1.5 and +5 % memory are
likewise measured of calls that really have them. Nothing is simulated but what says so.

Pairs of sets share sets and are not independent: rates are over all pairs drawn, and their Wilson intervals are those
of as many trials as there are pairs without a common set.

Contents: :mod:`~benchmarks.gate.cells` (what is measured), :mod:`~benchmarks.gate.measuring` (one set, in its own
interpreter), :mod:`~benchmarks.gate.asv_files` (sets as result files, written by asv), :mod:`~benchmarks.gate.rules`
(the gate and asv, asked about a pair), :mod:`~benchmarks.gate.figures` (rates), :mod:`~benchmarks.gate.simulated`
(the gate's error where every true change equals the margin), :mod:`~benchmarks.gate.tracked` (what the cells that asv
follows ask for).
"""
