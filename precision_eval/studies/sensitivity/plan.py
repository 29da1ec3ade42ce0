"""What a run is to do, as data; loads neither torch nor numpy."""

from __future__ import annotations

from dataclasses import dataclass

from precision_eval.core.errors import ParameterError, unknown_name
from precision_eval.studies.sensitivity.targets import SIZES, TARGETS, target_by_id
from precision_eval.trace.sites import FORMATS


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What to run."""

    targets: tuple[str, ...] = tuple(target.id for target in TARGETS)
    size: str = "cpu"
    formats: tuple[str, ...] = ("bfloat16", "float16")
    policy_format: str = "bfloat16"
    seed: int = 0
    policies: bool = True
    processes: int = 6
    budget_s: float = 1.5

    def checked(self) -> Plan:
        """Return the plan itself, if everything that it names exists."""
        for name in self.targets:
            target_by_id(name)
        if self.size not in SIZES:
            raise unknown_name("size:", self.size, SIZES)
        for format in (*self.formats, self.policy_format):
            if format not in FORMATS:
                raise unknown_name("format to map:", format, FORMATS)
        if self.processes < 1 or not self.budget_s > 0.0:
            raise ParameterError(
                f"processes is {self.processes} and budget {self.budget_s:g} s; expected at least 1, and more than 0"
            )
        return self
