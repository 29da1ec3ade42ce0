"""Memory of a model before it is run: weights, caches and what a call holds at once, per fix."""

from precision_eval.studies.memory.models import PlannedCall, planned_model
from precision_eval.studies.memory.plan import Planner

__all__ = ["PlannedCall", "Planner", "planned_model"]
