"""The doctor: where dtypes split in a model, what brought each dtype there, and which fix cures it.

:func:`~precision_eval.examine` runs a copy of the model once under observation, judges what it saw, holds it to the
compiler, and tries every fix of ``FIXES`` from outside. ``import precision_eval.doctor`` loads no torch.
"""
