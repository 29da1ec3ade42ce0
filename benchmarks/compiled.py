"""A few cases, every fix, under ``torch.compile``: ``compiled.<case>.<metric>``, from the registries."""

from __future__ import annotations

from benchmarks.generator import classes_of

globals().update(classes_of("compiled", __name__))
