import made_results
import pytest


@pytest.fixture(scope="session")
def made():
    """Makers of run folders and of asv's result folders."""
    return made_results
