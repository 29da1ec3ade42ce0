"""Experiments that measure the measuring: error rates of this suite's verdicts and of other tools.

Conventions: every experiment appends its trials to ``OUT/NAME.jsonl``, one strict JSON object per line, and goes on
where it stopped when it is run again. Figures are made from those lines alone. *quick* is a reduced size for
``make prove``; *full* is what is committed.
"""
