"""One thread per process: tests compare bits, and two cores are shared with whatever else runs."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MPLBACKEND", "Agg")

import pytest
import torch

torch.set_num_threads(1)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect (not skip) CUDA tests where no GPU is: a deselected test is not counted as anything."""
    if torch.cuda.is_available():
        return
    cuda = [item for item in items if item.get_closest_marker("cuda")]
    config.hook.pytest_deselected(items=cuda)
    items[:] = [item for item in items if not item.get_closest_marker("cuda")]
