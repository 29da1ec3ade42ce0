"""Memory of a model before it is run: weights, caches and what a call holds at once, per fix; loads no torch."""

from precision_eval.studies.memory.devices import DEVICES, Capability, Choice, choose_format
from precision_eval.studies.memory.models import MODELS, ModelConfig, Stack, model_by_name, parameter_count
from precision_eval.studies.memory.plan import FixPlan, Request, plan_all, plan_fix

__all__ = [
    "DEVICES",
    "MODELS",
    "Capability",
    "Choice",
    "FixPlan",
    "ModelConfig",
    "Request",
    "Stack",
    "choose_format",
    "model_by_name",
    "parameter_count",
    "plan_all",
    "plan_fix",
]
