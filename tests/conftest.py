"""One thread per process, unless OMP_NUM_THREADS says otherwise: two cores are shared with whatever else runs.

For the same reason no example of hypothesis has a deadline: how long one takes is the machine's affair.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MPLBACKEND", "Agg")

import pytest
import torch
from hypothesis import HealthCheck, settings

torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
settings.register_profile("shared cores", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shared cores")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect (not skip) CUDA tests where no GPU is; files with slow tests first, as workers take a file at a time.

    A deselected test is not counted as anything.
    """
    if not torch.cuda.is_available():
        cuda = [item for item in items if item.get_closest_marker("cuda")]
        config.hook.pytest_deselected(items=cuda)
        items[:] = [item for item in items if not item.get_closest_marker("cuda")]
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)
