import subprocess
import sys

import pytest

from precision_eval.core.errors import UnknownNameError
from precision_eval.fixes import fix_by_id


def test_an_unknown_fix_names_the_nearest():
    assert fix_by_id("autocast").agreement == "autocast"
    with pytest.raises(UnknownNameError, match=r"did you mean .*kv_to_query"):
        fix_by_id("kv_to_qery")


def test_the_catalog_loads_no_torch():
    code = "import sys, precision_eval.fixes, precision_eval.cases.systems; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
