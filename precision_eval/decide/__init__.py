"""Limits in, the fix to take and why out; the trade-off front with its uncertainty.

Pure functions over records: nothing is measured here, and neither torch nor a report is loaded.
"""

from .asking import Answer, Question, answer
from .changes import Change
from .choosing import Choice, LeftOut, choose_from
from .constraints import Constraints, parse_memory
from .facts import Contender, Estimate, Group, MissingMeasureError
from .front import Standing, point_front, standings
from .policies import POLICIES
from .reading import groups_of

__all__ = [
    "POLICIES",
    "Answer",
    "Change",
    "Choice",
    "Constraints",
    "Contender",
    "Estimate",
    "Group",
    "LeftOut",
    "MissingMeasureError",
    "Question",
    "Standing",
    "answer",
    "choose_from",
    "groups_of",
    "parse_memory",
    "point_front",
    "standings",
]
