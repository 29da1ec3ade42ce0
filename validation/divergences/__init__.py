"""First divergence of free-running streams, and its prediction from teacher-forced logits alone.

Conventions: a *step* is one decode step after the prompt, counted from 0; a stream that differs at step s has survived
s steps and leaves at time ``s + 1``. A stream that never differed is censored at the last step. A *group* is one
checkpoint at one temperature.
"""
