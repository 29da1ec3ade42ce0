"""asv adapters: thin over :mod:`precision_eval.history.tracking`, which holds the definitions; so their
history is real.
"""
