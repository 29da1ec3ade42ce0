"""Attention with faults planted in it, attention that is honestly different, and the rules that judge them.

Conventions: operands are query, key and value of one call on the CPU, stored in float16, bfloat16 or float32. The
*reference* is float64 arithmetic on those stored operands, the *yardstick* plain attention with each step stored in
their dtype. Everything is drawn from a seed; seeds from 10 000 on belong to the calibration of the judge and take other
speech than the seeds that it is judged on.
"""
