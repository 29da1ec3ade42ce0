import ast
import inspect
import sys
import tomllib
from pathlib import Path

import pytest
from programs import printed_by

import audio_metrics as am

PACKAGE = Path(am.__file__).parent


def test_imports_stay_inside_the_package():
    allowed = {"audio_metrics", "numpy", "scipy", "soundfile"} | sys.stdlib_module_names
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            else:
                continue
            assert {name.split(".")[0] for name in names} <= allowed, path.name


def test_the_catalog_lists_every_metric_function():
    listed = {metric.name: metric.function for metric in am.METRICS}
    assert len(listed) == len(am.METRICS)
    functions = {name for name in am.__all__ if inspect.isfunction(getattr(am, name))}
    others = {"compare", "compare_files", "inspect", "inspect_file", "ratio_to_null", "metric_by_name", "theil_sen"}
    assert functions - others == set(listed)
    for name, function in listed.items():
        assert function is getattr(am, name)
        assert function.__name__ == name
        assert function.__doc__


def test_the_catalog_is_consistent():
    for metric in am.METRICS:
        assert metric.low < metric.high
        assert metric.n_signals == 2 or not metric.aligned
        assert metric.formula
        assert metric.source
        for unit, suffix in (("dB", ("_db", "_dbfs")), ("s", ("_s",)), ("Hz", ("_hz",))):
            assert (metric.unit == unit) == metric.name.endswith(suffix), metric.name
    with pytest.raises(am.AudioParameterError, match="unknown metric 'mcd'; known: log_spectral_distance_db, "):
        am.metric_by_name("mcd")


def test_it_is_a_distribution_by_itself():
    """``pip install ./audio_metrics`` brings what the code imports, and the version is the suite's."""
    files = [
        tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8")) for folder in (PACKAGE, PACKAGE.parent)
    ]
    own, suite = (file["project"] for file in files)
    assert own["version"] == suite["version"]
    assert {name.split(">=")[0] for name in own["dependencies"]} == {"numpy", "scipy", "soundfile"}
    assert set(own["dependencies"]) <= set(suite["dependencies"])


CODE = """
import numpy as np, audio_metrics as am
rng = np.random.default_rng(0)
x = 0.1 * rng.standard_normal(20 * 16000)
result = am.compare(x, x + 1e-3 * rng.standard_normal(len(x)), sample_rate_hz=16000)
print(repr(sorted(result.to_dict().items())))
"""


def test_bits_do_not_depend_on_the_number_of_threads():
    """BLAS splits a large product by threads; none here is large enough for it to start any."""
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    assert printed_by("-c", CODE, **dict.fromkeys(names, "1")) == printed_by("-c", CODE, **dict.fromkeys(names, "4"))
