"""``FAMILY``: every sentence by which torch and its neighbours refuse operands of unlike dtypes.

Conventions: a literal tuple, put together from four files by what raises: attention, products, writes, layers. Order
matters only where two sentences begin at one place: the longer one is taken. Read from the sources or raised with
torch 2.6, 2.13 and 2.15 on a CPU; :class:`~precision_eval.diagnose.explain.members.Member` says what each field means.
"""

from __future__ import annotations

from precision_eval.diagnose.explain.family_attention import ATTENTION
from precision_eval.diagnose.explain.family_layers import LAYERS
from precision_eval.diagnose.explain.family_products import PRODUCTS
from precision_eval.diagnose.explain.family_writes import WRITES
from precision_eval.diagnose.explain.members import Member

FAMILY: tuple[Member, ...] = (*ATTENTION, *PRODUCTS, *WRITES, *LAYERS)


def member_by_id(member_id: str) -> Member:
    """Look a member up."""
    return {member.id: member for member in FAMILY}[member_id]
