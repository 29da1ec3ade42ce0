"""Every case, every fix, eager: ``eager.<case>.<metric>``, generated from the registries."""

from __future__ import annotations

from benchmarks.generator import classes_of

globals().update(classes_of("eager", __name__))
