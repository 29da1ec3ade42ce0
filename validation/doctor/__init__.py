"""How well the doctor locates faults, and what observing costs: ``python -m validation.doctor --out FILE.json``.

Conventions: a *plant* is a model that is clean, and one edit that makes dtypes split: a stored tensor, an input, or
what a module returns is brought to another dtype. Where that tensor first meets another dtype is written down with the
plant, as a module's path and a line, before any detector looks: in this package's own models by a comment at the end of
the line (``# @name``), in transformers' classes by a pattern that the line matches. A plant is *located* where the
first split has that module and that line.
"""
