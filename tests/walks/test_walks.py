"""The three walks are not stopped, in this environment; from a bare clone: ``python tests/walks/walk.py USER``."""

import pytest
from programs import printed_by


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("user", ["tts", "maintainer", "audio"])
def test_a_user_is_not_stopped(user):
    assert printed_by("tests/walks/walk.py", user, "--installed").endswith("not stopped once\n")
