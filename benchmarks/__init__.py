"""asv adapters: thin over :mod:`precision_eval.studies.tracking`, which holds the definitions; so their
history is real.
"""
