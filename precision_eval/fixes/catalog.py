"""The candidate remedies as plain data; this module loads no torch.

A fix is independent choices: *storage* (the dtype of parameters and buffers), *agreement* (what happens where operands
disagree), *compute* (how attention is computed) and *runtime* (eager, compiled, compiled with Dynamo's
``suppress_errors``). Dtypes are named by strings. ``FIXES`` are what a run measures by default; its order is the order
of every table. ``MORE_FIXES`` are measured where they are named, as in ``--fix 'sdpa_*'``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from precision_eval.core.errors import ParameterError, check_known, entry_of
from precision_eval.core.targets import is_target, loaded
from precision_eval.fixes.choices import FixChoices

if TYPE_CHECKING:
    from torch import nn

    from precision_eval.fixes.apply import AppliedFix


@dataclass(frozen=True, kw_only=True)
class Fix(FixChoices):
    """One candidate remedy.

    Attributes
    ----------
    id : str
        Name used in cells and records.
    title : str
        A few words for tables.
    storage : {"as_shipped", "float16", "bfloat16", "float32", "per_case"}
        Dtype of floating parameters and buffers while the fix is applied.
    agreement : {"none", "activation_to_storage", "storage_to_activation", "autocast", "per_case"}
        What happens where operands disagree; :mod:`precision_eval.fixes.sites` says which operand is which. Per
        case: what the model's own ``upstream()`` does.
    modes : tuple of {"eager", "compiled"}
        Where the fix has a meaning.
    compute : str
        One of :data:`precision_eval.fixes.compute.SETTINGS`; empty for torch's own.
    suppress_errors : bool
        Set ``torch._dynamo.config.suppress_errors`` while it runs.
    explanation : str
        What it does and what it is known for.
    source : str
        Where it was proposed.
    revision : int
        Raised when what the fix does is redefined, so that a history does not go on as if it were the same.
    by_default : bool
        Part of ``*``, every fix; others are named.
    change : callable, optional
        ``change(model)``, for a candidate of one's own: it gets a copy of the model and changes it in place, returns
        another one, or returns a context manager that is held while the model is called. Storage comes after it.
    """

    @property
    def label(self) -> str:
        """Name in a history: the id, with ``~2`` from the second revision on."""
        return self.id if self.revision == 1 else f"{self.id}~{self.revision}"

    def applied(self, model: nn.Module, *, mode: str = "eager") -> AppliedFix:
        """Put this fix on a model, from outside.

        Parameters
        ----------
        model : torch.nn.Module
            In the state in which it ships. It is changed only inside the returned object's contexts.
        mode : {"eager", "compiled"}
            How the model is run.

        Returns
        -------
        AppliedFix
            A context manager that is also the call: ``with fix.applied(model) as call: call(*inputs)``.

        Raises
        ------
        UnknownNameError
            The fix has no such mode.
        """
        check_known(f"mode of the fix '{self.id}':", mode, self.modes)
        from precision_eval.fixes.apply import AppliedFix

        return AppliedFix(self, model, mode=mode)


FIXES: tuple[Fix, ...] = (
    Fix(
        id="as_shipped",
        title="as shipped",
        explanation="The control: the model as it raises. A case that passes here does not have the bug.",
        source="metavoiceio/metavoice-src #187; nari-labs/dia #158",
    ),
    Fix(
        id="query_to_half",
        title="query → cache dtype",
        agreement="activation_to_storage",
        explanation=(
            "Casts the activation: the query to the cache's dtype, an input to its weight's. This touches kilobytes at "
            "decode; attention then runs in the storage dtype, and a bfloat16 query loses range."
        ),
        source="metavoiceio/metavoice-src #106",
    ),
    Fix(
        id="kv_to_query",
        title="cache → query dtype",
        agreement="storage_to_activation",
        explanation=(
            "Casts keys, values and weights to the activation's dtype where they are used. Exact for float16 → "
            "float32, but reads and writes the whole cache at every decode step."
        ),
        source="nari-labs/dia PR #45 (9d0e434)",
    ),
    Fix(
        id="full_float32",
        title="everything float32",
        storage="float32",
        explanation="One dtype everywhere, the widest in use. No dtypes can conflict; twice the memory of half.",
        source="metavoiceio/metavoice-src #108",
    ),
    Fix(
        id="bfloat16",
        title="everything bfloat16",
        storage="bfloat16",
        explanation="One dtype everywhere: float32's range with 8 bits of significand. Emulated on older devices.",
        source="metavoiceio/metavoice-src #172",
    ),
    Fix(
        id="dynamo_fallback",
        title="suppress Dynamo errors",
        modes=("compiled",),
        suppress_errors=True,
        explanation=(
            "After a compiler error the frame runs in eager mode. This cannot cure a mismatch that eager mode has too, "
            "and the table shows that."
        ),
        source="metavoiceio/metavoice-src #187",
    ),
    Fix(
        id="float16",
        title="everything float16",
        storage="float16",
        explanation="One dtype everywhere: 11 bits of significand, but nothing beyond 65504.",
        source="metavoiceio/metavoice-src #108; nari-labs/dia PR #88",
    ),
    Fix(
        id="autocast",
        title="autocast",
        agreement="autocast",
        explanation=(
            "Each call runs inside torch.autocast with the device's default dtype; attention and matrix products are "
            "on its lower-precision list. Weights and caches are cast at every call."
        ),
        source="brycedrennan/imaginAIry PR #443 (d3106fc)",
    ),
    Fix(
        id="upstream",
        title="what landed upstream",
        storage="per_case",
        agreement="per_case",
        explanation=(
            "The change that the project made, written into the model's source. Unsupported if none landed; the open "
            "threads are listed."
        ),
        source="each system's own repository; `precision-eval list cases` names the change",
    ),
)

_MORE_FIXES = (
    Fix(
        id="softmax_float32",
        title="softmax in float32",
        agreement="activation_to_storage",
        compute="softmax_float32",
        explanation=(
            "`query_to_half`, with attention written out: scores stored in the operands' dtype, softmax in float32."
        ),
        source="FlashAttention, arXiv 2205.14135; PASA, arXiv 2503.01873",
    ),
    *(
        Fix(
            id=f"sdpa_{backend}",
            title=f"{backend} kernel",
            agreement="activation_to_storage",
            compute=f"sdpa_{backend}",
            explanation=f"`query_to_half`, with attention on the {backend} kernel only; unsupported if it cannot run.",
            source="torch.nn.attention.sdpa_kernel",
        )
        for backend in ("math", "flash", "efficient", "cudnn")
    ),
)
MORE_FIXES: tuple[Fix, ...] = tuple(replace(fix, by_default=False) for fix in _MORE_FIXES)
ALL_FIXES: tuple[Fix, ...] = (*FIXES, *MORE_FIXES)


def fix_by_id(fix_id: str) -> Fix:
    """Look a fix up.

    Parameters
    ----------
    fix_id : str
        One of the ids in ``FIXES`` or ``MORE_FIXES``; or where a candidate of one's own is written, ``file.py:name`` or
        ``package.module:name``: a :class:`Fix`, or a callable that changes a model.

    Returns
    -------
    Fix

    Raises
    ------
    UnknownNameError
        No fix has that id; names the nearest ones.
    ParameterError
        What is written there is no candidate.
    """
    if is_target(fix_id):
        return _candidate(fix_id)
    return entry_of("fix", fix_id, ALL_FIXES)


def _candidate(target: str) -> Fix:
    """Import a candidate; its id is where it is written, so that any process can import it."""
    value = loaded(target, kind="candidate")
    if isinstance(value, Fix):
        return replace(value, id=target)
    if not callable(value):
        raise ParameterError(
            f"{target} is a {type(value).__name__}; expected a Fix, or a callable that changes a model"
        )
    return Fix(id=target, title=target.rpartition(":")[2], change=value)
