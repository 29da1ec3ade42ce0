import subprocess
import sys

import pytest

from precision_eval.core.errors import UnknownNameError
from precision_eval.fixes import FIXES, fix_by_id


def test_the_list_is_the_table_of_candidates():
    assert [fix.id for fix in FIXES] == [
        "as_shipped",
        "query_to_half",
        "kv_to_query",
        "full_float32",
        "bfloat16",
        "dynamo_fallback",
        "float16",
        "autocast",
        "upstream",
    ]
    assert [fix.id for fix in FIXES if fix.suppress_errors] == ["dynamo_fallback"]
    assert [fix.id for fix in FIXES if fix.modes != ("eager", "compiled")] == ["dynamo_fallback"]
    assert {fix.id: fix.storage for fix in FIXES if fix.storage != "as_shipped"} == {
        "full_float32": "float32",
        "bfloat16": "bfloat16",
        "float16": "float16",
        "upstream": "per_case",
    }


def test_an_unknown_fix_names_the_nearest():
    assert fix_by_id("autocast").agreement == "autocast"
    with pytest.raises(UnknownNameError, match=r"did you mean .*kv_to_query"):
        fix_by_id("kv_to_qery")


def test_a_mode_that_the_fix_lacks_is_refused():
    with pytest.raises(UnknownNameError, match=r"mode of the fix 'dynamo_fallback'.*compiled"):
        fix_by_id("dynamo_fallback").applied(None, mode="eager")


def test_the_catalog_loads_no_torch():
    code = "import sys, precision_eval.fixes, precision_eval.cases.systems; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
