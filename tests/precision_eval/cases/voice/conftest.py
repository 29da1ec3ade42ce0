"""Tests that regenerate speech need libespeak-ng; without it they are deselected, not skipped."""

import pytest

from precision_eval.core.errors import UnsupportedError
from tools.voice.espeak import espeak_version


def _has_espeak() -> bool:
    try:
        espeak_version()
    except UnsupportedError:
        return False
    return True


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    marked = [item for item in items if item.get_closest_marker("espeak")]
    if not marked or _has_espeak():
        return
    config.hook.pytest_deselected(items=marked)
    items[:] = [item for item in items if item not in marked]
