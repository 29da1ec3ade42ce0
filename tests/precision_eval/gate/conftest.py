import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest


@pytest.fixture(scope="session")
def made():
    """Makers of run folders and of asv's result folders."""
    return SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("made_results.py"))))
