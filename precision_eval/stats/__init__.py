"""Statistics of the evaluation: numpy arrays in, small frozen results out.

Conventions: times are seconds, ratios are candidate over baseline (below 1 = faster), intervals are two-sided with the
stated confidence, and everything that draws at random takes a seed and repeats exactly. No sample is ever dropped.
"""
