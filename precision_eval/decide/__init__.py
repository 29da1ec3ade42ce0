"""Limits in, the fix to take and why out; the trade-off front with its uncertainty.

Pure functions over records: nothing is measured here, and neither torch nor a report is loaded.

Contents
--------
facts
    :class:`Estimate`, :class:`Contender`, :class:`Group`: what the records say.
reading
    :func:`groups_of`: groups from records.
comparing
    Which of two is better on one axis, or that the measurement does not say.
front
    The trade-off front.
constraints
    :class:`Constraints`: limits, and whether they are kept surely, surely not, or within noise.
policies
    ``quality``, ``balanced``, ``speed``: what each minimises, and how a tie is broken.
settling, changes
    Which fix is taken under given limits; what would change that.
choosing
    :class:`Choice`, :func:`choose_from`.
extents, beside
    The length that a size stands for; times from a sweep, memory from a plan.
asking
    :class:`Question`, :class:`Answer`, :func:`answer`: the whole run.
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
