"""What ``audio_metrics`` costs and finds, beside its peers: ``make bench-audio``.

Conventions: ratios are of CPU time in one process on one thread, paired: every round runs all candidates in random
order, and the figure is the median of the rounds' ratios. Targets are fixed here, before measuring; a missed one is
printed as missed.
"""
