"""The timing experiment's parts: calls of a known slowdown, load, this suite's judge and other tools', the schedule.

Conventions: a *trial* times one pair of calls, a baseline and a candidate that does exactly (1 + delta) times its units
of work, by one tool under one load. Times are seconds unless a name says otherwise; ratios are candidate over baseline,
so above 1 = slower. What a tool says is one of ``faster``, ``slower``, ``same`` (it flags nothing), and for this suite
``equivalent`` or ``undecided`` in place of ``same``.
"""
