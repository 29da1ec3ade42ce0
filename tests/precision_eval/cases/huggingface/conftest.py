"""The tiny classes of the zoo, imported when a test first asks for them: transformers and diffusers take seconds."""

import importlib

import pytest


@pytest.fixture(scope="session")
def tiny_models():
    pytest.importorskip("transformers")
    pytest.importorskip("diffusers")
    return importlib.import_module("tiny_models")
