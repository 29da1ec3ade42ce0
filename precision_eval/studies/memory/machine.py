"""The operations of a model as allocations, with the casts that a fix inserts; nothing is computed.

Conventions: as in :mod:`precision_eval.studies.memory.ledger`. Which operand is activation and which is storage, and
where casts go, follows :mod:`precision_eval.fixes.sites`; autocast follows torch's ``cached_cast``: matrix products and
attention in its dtype, and the copy of a float32 parameter kept until the context ends [1]_.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from precision_eval.studies.memory.ledger import DisagreementError, Kind, Meter, Sized, allocate, broadcast, promoted

_HALF = ("float16", "bfloat16")


def fused_workspace_bytes(query: tuple[int, ...], keys: int, dtype: str, *, threads: int, cpu: bool) -> int:
    """Bytes that fused attention takes for itself, mask and output left out."""
    logsumexp, tile, again = fused_scratch_bytes(query, keys, item=2 if dtype in _HALF else 4, threads=threads)
    return logsumexp + tile + again if cpu else logsumexp


def fused_scratch_bytes(query: tuple[int, ...], keys: int, *, item: int, threads: int) -> tuple[int, int, int]:
    """Scratch of the CPU's fused attention, block by block."""
    batch, heads, queries, width = query
    split = 256 if queries >= 768 else 64 if queries >= 192 else 32
    rows, columns = min(split, queries), min(512, keys)
    tile = threads * (rows * columns + 2 * rows + rows * width) * 4
    return batch * heads * queries * 4, tile, threads * rows * columns * item if item == 2 else 0


@dataclass(kw_only=True)
class Machine:
    """Runs operations as allocations."""

    agreement: str
    autocast_dtype: str = "bfloat16"
    cpu: bool = True
    math_attention: bool = False
    threads: int = 1
    keeps_casts: bool = True
    fused_norm_promotes: bool = False
    meter: Meter = field(default_factory=Meter)
    _kept: list[Sized] = field(default_factory=list)

    def new(self, shape: tuple[int, ...], dtype: str, kind: Kind = "activations") -> Sized:
        """Take memory for a result."""
        return allocate(self.meter, shape, dtype, kind)

    def cast(self, x: Sized, dtype: str, kind: Kind = "casts") -> Sized:
        """Copy into another dtype; nothing where it is that already."""
        return x if x.dtype == dtype else self.new(x.shape, dtype, kind)

    def mapped(self, x: Sized) -> Sized:
        """Apply a function to each element."""
        return self.new(x.shape, x.dtype)

    def combined(self, x: Sized, y: Sized) -> Sized:
        """Combine two tensors element by element, promoting and broadcasting; the CPU casts what differs first."""
        dtype = promoted(x.dtype, y.dtype)
        cast = [self.cast(t, dtype, "workspace") for t in (x, y)] if self.cpu else []
        result = self.new(broadcast(x.shape, y.shape), dtype)
        del cast
        return result

    def added(self, x: Sized, y: Sized) -> Sized:
        """Add in place; where dtypes differ the CPU computes in promoted copies of both and of the result."""
        dtype = promoted(x.dtype, y.dtype)
        if self.cpu:
            cast = [self.cast(t, dtype, "workspace") for t in (x, y, x)]
            del cast
        return x

    def concatenated(self, x: Sized, shape: tuple[int, ...]) -> Sized:
        """Join parts of x's dtype; autocast promotes here, and refuses the half format that is not its own."""
        if self.agreement == "autocast" and x.dtype in _HALF and x.dtype != self.autocast_dtype:
            raise DisagreementError(f"concatenation: autocast in {self.autocast_dtype} refuses {x.dtype}")
        return self.new(shape, x.dtype)

    def _lowered(self, x: Sized) -> Sized:
        """Cast as autocast does; the copy of a float32 parameter is kept."""
        copy = self.cast(x, self.autocast_dtype)
        if copy is not x and self.keeps_casts and x.parameter and x.dtype == "float32":
            self._kept.append(copy)
        return copy

    def _agreed(self, what: str, x: Sized, stored: Sized) -> tuple[Sized, Sized]:
        """Bring activation and storage together as the fix says."""
        if self.agreement == "autocast":
            return self._lowered(x), self._lowered(stored)
        if x.dtype == stored.dtype:
            return x, stored
        if self.agreement == "activation_to_storage":
            return self.cast(x, stored.dtype), stored
        if self.agreement == "storage_to_activation":
            return x, self.cast(stored, x.dtype)
        raise DisagreementError(f"{what}: {x.dtype} meets {stored.dtype}")

    def linear(self, x: Sized, width: int, dtype: str, *, casting: bool = False, what: str = "linear") -> Sized:
        """Multiply by a stored weight (width, x's width)."""
        weight = Sized((width, x.shape[-1]), dtype, parameter=not casting)  # tensordot sees a view of it
        given = self.cast(x, dtype, "activations") if casting else x
        left, right = self._agreed(what, given, weight)
        y = self.new((*x.shape[:-1], width), left.dtype)
        del left, right, given
        return self.cast(y, x.dtype, "activations") if casting else y

    def norm(self, x: Sized, style: str, dtype: str) -> Sized:
        """Normalise by a stored weight; see :class:`precision_eval.studies.memory.models.Stack` for the styles."""
        weight = Sized((x.shape[-1],), dtype)
        if style == "rms":
            y = self.cast(self._normalised(self.cast(x, promoted(x.dtype, "float32"), "activations")), x.dtype)
            return self.combined(y, weight)
        if style == "t5":
            return self._t5_norm(x, weight)
        return self._fused_norm(x, weight, style)

    def _normalised(self, x: Sized) -> Sized:
        squares = self.mapped(x)
        rows = self.new((*x.shape[:-1], 1), x.dtype)
        del squares
        return self.combined(x, rows)

    def _t5_norm(self, x: Sized, weight: Sized) -> Sized:
        squares = self.mapped(self.cast(x, promoted(x.dtype, "float32"), "activations"))
        rows = self.new((*x.shape[:-1], 1), squares.dtype)
        del squares
        y = self.combined(x, rows)
        if weight.dtype in _HALF:
            y = self.cast(y, weight.dtype, "activations")
        return self.combined(weight, y)

    def _fused_norm(self, x: Sized, weight: Sized, style: str) -> Sized:
        if x.dtype != weight.dtype and self.agreement in ("activation_to_storage", "storage_to_activation"):
            x, weight = self._agreed("norm", x, weight)
        result = promoted(x.dtype, weight.dtype) if self.fused_norm_promotes and style == "rms_fused" else x.dtype
        workspace = self.new((2, *x.shape[:-1]), "float32", "workspace")  # mean and deviation per row
        y = self.new(x.shape, result)
        del workspace
        return y

    def write(self, cache: Sized, value: Sized, how: str) -> None:
        """Write into a cache; an index put refuses another dtype, a slice casts within the copy."""
        if value.dtype == cache.dtype or how == "slice":
            return
        if self.agreement not in ("activation_to_storage", "storage_to_activation"):
            raise DisagreementError(f"cache write: {value.dtype} into {cache.dtype}")
        self.cast(value, cache.dtype)

    def attend(self, q: Sized, k: Sized, v: Sized, mask: Sized | None) -> Sized:
        """Scaled dot-product attention of q (B, H, Lq, D) on k, v (B, Hkv, Lk, D)."""
        dtypes = q.dtype, k.dtype
        q, k = self._agreed("attention", q, k)
        v = self.cast(v, k.dtype)
        assert self.agreement != "none" or dtypes[0] == dtypes[1]
        floating = None if mask is None else self.cast(mask, q.dtype, "workspace")
        if self.math_attention:
            return self._math(q, k, v, floating)
        y = self.new(q.shape, q.dtype)
        nbytes = fused_workspace_bytes(q.shape, k.shape[-2], q.dtype, threads=self.threads, cpu=self.cpu)
        workspace = self.new((nbytes,), "bool", "workspace")
        del workspace, floating
        return y

    def _math(self, q: Sized, k: Sized, v: Sized, mask: Sized | None) -> Sized:
        wide = "float32" if q.dtype in _HALF else q.dtype
        copies = [self.cast(x, wide, "workspace") for x in (q, k, v)]
        scaled = self.new(q.shape, wide, "workspace")
        if q.shape[1] != k.shape[1]:  # grouped heads are repeated
            copies += [self.new((*q.shape[:2], *k.shape[2:]), wide, "workspace") for _ in range(2)]
        scaled_key = self.new((*q.shape[:2], *k.shape[2:]), wide, "workspace")
        scores = self.new((*q.shape[:3], k.shape[2]), wide, "workspace")
        del scaled_key, scaled
        weights = self.new(scores.shape, wide, "workspace")
        seen = self.new(scores.shape, "bool", "workspace")  # rows without any key are looked for
        del seen, scores
        y = self.new(q.shape, wide)
        del copies, weights
        return self.cast(y, q.dtype, "activations")

    def product(self, x: Sized, y: Sized) -> Sized:
        """Batched product (..., n, m) × (..., m, p); operands that are no plain batch are copied first."""
        x, y = self._agreed("matmul", x, y)
        copies = [self.new(t.shape, t.dtype, "workspace") for t in (x, y)] if x.shape[0] > 1 else []
        z = self.new((*x.shape[:-1], y.shape[-1]), x.dtype)
        del copies
        return z
