"""How much a run measures where nothing else is asked for: a first look, the default, or enough to publish."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from precision_eval.core.cells import Options
from precision_eval.core.errors import ParameterError
from precision_eval.core.targets import is_target
from precision_eval.measure.registry import all_measures

# What only the HTML report shows.
HTML_ONLY_MEASURES = ("streams", "divergence", "synthesis", "audio")


@dataclass(frozen=True, kw_only=True)
class Tier:
    """Effort of a run, and what it leaves out unless that is named.

    `leaves_out` applies always, `leaves_out_of_own` where every case is the user's own, and `leaves_out_unasked` where
    no case is named; the last may also name cases and controls.
    """

    minutes: float
    streams: int
    steps: int
    budget_s: float
    all_sizes: bool = False
    modes: tuple[str, ...] | None = None
    leaves_out: tuple[str, ...] = ()
    leaves_out_of_own: tuple[str, ...] = ()
    leaves_out_unasked: tuple[str, ...] = ()
    seeds: int | None = None

    def options(self, cases: Sequence[str] | None, **chosen: Any) -> Options:
        """Return the options of a run: what was chosen, else the tier's."""
        names = ("minutes", "streams", "steps", "budget_s", "seeds")
        defaults = {name: getattr(self, name) for name in names}
        if _are_own(cases):
            defaults["seeds"] = None  # the user's factory is called once
        return Options(**defaults | {name: value for name, value in chosen.items() if value is not None})

    def measures(self, cases: Sequence[str] | None) -> tuple[str, ...]:
        """Return what is measured of these cases, None being those that are in by default."""
        left_out = {*self.leaves_out, *(self.leaves_out_of_own if _are_own(cases) else ())}
        left_out |= set() if cases else set(self.leaves_out_unasked)
        return tuple(measure.name for measure in all_measures() if measure.name not in left_out)


QUICK = Tier(
    minutes=0.05,
    streams=4,
    steps=25,
    budget_s=0.5,
    modes=("eager",),
    leaves_out=(*HTML_ONLY_MEASURES, "sound"),
    leaves_out_unasked=("attention-prefill",),
)
# Nobody knows beforehand how long a model of the user's own takes to speak, so its sound has to be asked for.
DEFAULT = Tier(
    minutes=0.25,
    streams=16,
    steps=50,
    budget_s=2.0,
    leaves_out_of_own=("sound",),
    leaves_out_unasked=(*HTML_ONLY_MEASURES, "control_long_window"),
)
THOROUGH = Tier(minutes=10.0, streams=64, steps=500, budget_s=10.0, all_sizes=True, seeds=8)


def tier_of(*, quick: bool, thorough: bool) -> Tier:
    """Return the tier that two flags ask for."""
    if quick and thorough:
        raise ParameterError("--quick and --thorough were given; give one of them")
    return QUICK if quick else THOROUGH if thorough else DEFAULT


def cell_limit_s(minutes: float) -> float:
    """Return the seconds that a cell may take by default: float64 on busy cores needs a minute for one of audio."""
    return max(900.0, 60.0 * minutes)


def _are_own(cases: Sequence[str] | None) -> bool:
    return bool(cases) and all(is_target(case) for case in cases or ())
