"""Memory of a model before it is run: weights, caches and what a call holds at once, per fix; loads no torch.

Contents
--------
models
    Configurations as data, the published ones among them, and their parameter counts.
config, hugging_face
    Reading CONFIG.json, this package's own schema or a Hugging Face model's.
ledger, machine, forward
    An allocator that only counts, the operations with the casts of a fix, and a call of each kind of stack.
plan
    What is stored, what lives at once, and the largest length that fits.
devices
    Which formats a device computes in natively, and so which fix to take there.
text
    Tables and sizes.
"""

from precision_eval.memory_plan.devices import DEVICES, Capability, Choice, choose_format
from precision_eval.memory_plan.models import MODELS, ModelConfig, Stack, model_by_name, parameter_count
from precision_eval.memory_plan.plan import FixPlan, Request, plan_all, plan_fix

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
