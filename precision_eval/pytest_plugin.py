"""The pytest fixture ``precision``: what fixes cost a model, and whether an edit made it worse, in a test of one's own.

Conventions: figures are those of :func:`precision_eval.compare`. They are kept with the test as user properties, which
pytest writes into its JUnit XML; where the test has pytest-benchmark's fixture too, also as its ``extra_info``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from precision_eval.studies.compare import Costs


class Precision:
    """What the fixture ``precision`` offers."""

    def __init__(self, request: pytest.FixtureRequest) -> None:
        self._request = request

    def compare(
        self,
        model: Any,
        *inputs: Any,
        fixes: Sequence[str] = ("full_float32", "float16", "bfloat16"),
        candidates: Mapping[str, Callable[[Any], Any]] | None = None,
        baseline: str = "full_float32",
        budget_s: float = 1.0,
    ) -> Costs:
        """Measure a model under shipped fixes and under changes of one's own, beside each other.

        Parameters
        ----------
        model : torch.nn.Module
        *inputs : object
            Of one call; a single dict holds them by names.
        fixes : sequence of str
            Ids of shipped fixes.
        candidates : mapping of str to callable, optional
            Each gets a copy of the model and changes it, returns another one, or returns a context manager.
        baseline : str
            That times are ratios to.
        budget_s : float
            Seconds of timing.

        Returns
        -------
        Costs
        """
        from precision_eval import Fix, compare, fixed

        own = {name: fixed(model, Fix(id=name, change=change)) for name, change in (candidates or {}).items()}
        calls = {fix: fixed(model, fix) for fix in fixes} | own
        costs = compare(calls, *inputs, baseline=baseline, reference=model, budget_s=budget_s)
        self._keep(costs)
        return costs

    def assert_drift(
        self,
        factory: str | Callable[[], Any],
        *,
        below: float,
        fix: str | Callable[[Any], Any] = "as_shipped",
        seed: int = 0,
    ) -> Costs:
        """Fail the test where a model raises under a fix, is not finite, or drifts from float64 as far as a bound.

        Parameters
        ----------
        factory : callable or str
            Of ``(model, inputs)`` or of an ``OwnCase``, or where one is written.
        below : float
            Bound of the relative error of one call to float64.
        fix : str or callable
            Id of a shipped fix, or a change of one's own, as in :meth:`compare`.
        seed : int
            Of what the factory draws.

        Returns
        -------
        Costs
        """
        from precision_eval import Fix, compare, fixed
        from precision_eval.cases.own import own_case
        from precision_eval.core.targets import name_of

        own, name = own_case(factory, seed=seed), name_of(fix)
        model = own.module()
        call = fixed(model, fix if isinstance(fix, str) else Fix(id=name, change=fix))
        costs = compare({name: call}, *own.arguments(seed), baseline=name, reference=model, latency=False, memory=False)
        self._keep(costs)
        cost = costs[name]
        assert cost.status == "passed", f"under {name} the model {cost.status.replace('_', ' ')}: {cost.reason}"
        assert cost.drift is not None, f"under {name} there is no drift: {'; '.join(costs.doubts) or 'no reference'}"
        assert cost.drift < below, f"under {name} the drift is {cost.drift:.3g}; expected below {below:g}"
        return costs

    def assert_no_worse(
        self, after: Any, *inputs: Any, than: Any, slower: float = 0.05, drift: float = 0.1, budget_s: float = 1.0
    ) -> Costs:
        """Fail the test where a model raises, is slower or drifts further than another one.

        Parameters
        ----------
        after, than : torch.nn.Module
            Whose state is judged, and what it is held to.
        *inputs : object
        slower : float
            Relative slowdown that is let pass; it fails only where the whole interval of a verdict lies beyond.
        drift : float
            Relative growth of drift that is let pass.
        budget_s : float

        Returns
        -------
        Costs
        """
        from precision_eval import compare

        calls = {"before": than, "after": after}
        costs = compare(calls, *inputs, baseline="before", reference=than, budget_s=budget_s)
        self._keep(costs)
        old, new = costs["before"], costs["after"]
        faults = []
        if old.status == "passed" != new.status:
            faults.append(f"it {new.status}: {new.reason}")
        if new.latency is not None and new.latency.verdict_low > 1 + slower:
            faults.append(f"it is slower: {new.latency}")
        if old.drift is not None and new.drift is not None and new.drift > old.drift * (1 + drift):
            faults.append(f"it drifts further: {new.drift:.3g}, was {old.drift:.3g}")
        assert not faults, "; ".join(faults)
        return costs

    def _keep(self, costs: Costs) -> None:
        figures = {
            name: {
                "status": cost.status,
                "drift": cost.drift,
                "latency_ratio": None if cost.latency is None else cost.latency.ratio,
                "stored_bytes": cost.stored_bytes,
                "peak_bytes": cost.peak_bytes,
            }
            for name, cost in costs.items()
        }
        self._request.node.user_properties.append(("precision", figures))
        if "benchmark" in self._request.fixturenames:
            self._request.getfixturevalue("benchmark").extra_info["precision"] = figures


@pytest.fixture
def precision(request: pytest.FixtureRequest) -> Precision:
    """Measure what fixes cost a model: ``precision.compare(model, x)``, ``precision.assert_drift(...)``."""
    return Precision(request)
