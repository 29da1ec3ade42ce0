"""asv adapters: thin over :mod:`precision_eval`, which holds the definitions, so that their history is real."""
