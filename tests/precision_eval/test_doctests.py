"""The examples in the documentation run as they stand."""

import doctest
import importlib

import pytest

MODULES = ("precision_eval.measure.latency", "precision_eval.studies.compare")


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    result = doctest.testmod(importlib.import_module(name))
    assert result.attempted > 0
    assert result.failed == 0
