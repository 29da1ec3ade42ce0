"""Memory of a model before it is run: weights, caches and what a call holds at once, per fix."""

from precision_eval.studies.memory.devices import DEVICES, Capability, choose_format, device_by_name
from precision_eval.studies.memory.models import MODELS, PlannedCall, PlannedModel, planned_model
from precision_eval.studies.memory.plan import FixPlan, Planner, plan_all

__all__ = [
    "DEVICES",
    "MODELS",
    "Capability",
    "FixPlan",
    "PlannedCall",
    "PlannedModel",
    "Planner",
    "choose_format",
    "device_by_name",
    "plan_all",
    "planned_model",
]
