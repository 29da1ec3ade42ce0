"""pytest-benchmark over the attention workloads: ``pytest benchmarks --benchmark-only``.

This folder is no package, so asv does not look into it. A fix that raises is shown as *xfailed* with its message, an
unsupported one is skipped with its reason. Compare only within one session; the spread of separate runs is what
``precision-eval run`` removes by interleaving.
"""

from __future__ import annotations

import pytest

from precision_eval.errors import UnsupportedError
from precision_eval.fixes.catalog import FIXES, Fix
from precision_eval.workloads import WORKLOADS, Workload

torch = pytest.importorskip("torch")
pytest.importorskip("pytest_benchmark")

THREADS = 1

pytestmark = pytest.mark.filterwarnings("default")  # torch.compile warns on its own account

CASES = [
    pytest.param(workload, fix, mode, size, id=f"{workload.id}-{size}-{fix.id}-{mode}")
    for workload in WORKLOADS
    if workload.id.startswith("attention-")
    for size in workload.default_sizes
    for fix in FIXES
    if workload.takes(fix.id)
    for mode in fix.modes[:1]
]


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(THREADS)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("workload", "fix", "mode", "size"), CASES)
def test_call(benchmark, workload: Workload, fix: Fix, mode: str, size: str):
    benchmark.group = f"{workload.id} {size}"
    benchmark.extra_info |= {
        "workload_digest": workload.digest,
        "fix": fix.id,
        "mode": mode,
        "threads": THREADS,
        "torch": torch.__version__,
    }
    case = workload.build(size, device="cpu", seed=0)
    with fix.applied(case.model, mode=mode) as call:
        inputs = call.prepare(case.inputs)
        try:
            call(*inputs)
        except UnsupportedError as error:
            pytest.skip(f"unsupported: {error}")
        except RuntimeError as error:
            pytest.xfail(f"raised: {str(error)[:300]}")
        result = benchmark(call, *inputs)
    assert torch.isfinite(result).all()
