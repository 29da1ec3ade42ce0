"""Whether the sound verdict keeps its error rate, and how much degradation it hears."""

from __future__ import annotations

from validation.frame import Experiment
from validation.sound import bank

EXPERIMENT = Experiment(
    name="sound",
    title="false alarms and power of the verdict on sound",
    trials=bank.trials,
    run=bank.run,
    figures=lambda content: [],
    settings={"passages": (96, 192), "planted": (48, 96), "seeds": (4, 12)},
)
