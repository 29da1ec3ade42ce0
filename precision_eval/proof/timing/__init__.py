"""The timing experiment's parts: calls of a known slowdown, load, this suite's judge and other tools', the schedule.

Conventions: a *trial* times one pair of calls, a baseline and a candidate that does exactly (1 + delta) times its units
of work, by one tool under one load. Times are seconds unless a name says otherwise; ratios are candidate over baseline,
so above 1 = slower. What a tool says is one of ``faster``, ``slower``, ``same`` (it flags nothing), and for this suite
``equivalent`` or ``undecided`` in place of ``same``.

Contents
--------
calls
    The pairs of calls, their lengths and their injected slowdowns.
load, burst
    The machine left alone, and the same with a bursting competitor per core; how busy others kept it.
ours, rivals_asv, rivals_pytest_benchmark, rivals_torch, rivals_ttest
    One judge each: ``judge(base, candidate, *, budget_s, seed) -> Judged``.
tools
    The list of them, and what a judge returns.
worker
    The process that measures, apart from the one that shows progress.
schedule
    Which trials, in which order.
figures, plots
    From the trials alone.
"""
