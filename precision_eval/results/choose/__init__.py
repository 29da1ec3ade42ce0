"""Limits in, the fix to take and why out; the trade-off front with its uncertainty.

Pure functions over records: nothing is measured here, and neither torch nor a report is loaded.
"""

from precision_eval.results.choose.asking import Answer, Question, answer
from precision_eval.results.choose.choosing import POLICIES, Choice, choose_from
from precision_eval.results.choose.comparing import Constraints, parse_memory, point_front, standings
from precision_eval.results.model import Estimate, Group, MissingMeasureError, Row
from precision_eval.results.reading import groups_of

__all__ = [
    "POLICIES",
    "Answer",
    "Choice",
    "Constraints",
    "Estimate",
    "Group",
    "MissingMeasureError",
    "Question",
    "Row",
    "answer",
    "choose_from",
    "groups_of",
    "parse_memory",
    "point_front",
    "standings",
]
