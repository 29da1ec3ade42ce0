"""Arrays that are used again for every block.

Asking the system for fresh memory in every block costs a fifth of the processor time of the whole pass, in page faults.
"""

from __future__ import annotations

import math

import numpy as np


class Workspace:
    """Named arrays, made larger when they have to be; what one held before is lost when it is asked for again."""

    def __init__(self) -> None:
        self._held: dict[str, np.ndarray] = {}
        self._shaped: dict[tuple[str, tuple[int, ...], np.dtype], np.ndarray] = {}

    def array(self, name: str, shape: tuple[int, ...], dtype: np.dtype | type) -> np.ndarray:
        """The array of that name as one of that shape and dtype, always the same for a name; values are undefined."""
        dtype = np.dtype(dtype)
        found = self._shaped.get((name, shape, dtype))
        if found is not None:
            return found
        size = math.prod(shape)
        held = self._held.get(name)
        if held is None or held.size < size or held.dtype != dtype:
            held = self._held[name] = np.empty(size, dtype)
            self._shaped = {key: array for key, array in self._shaped.items() if key[0] != name}
        result = self._shaped[name, shape, dtype] = held[:size].reshape(shape)
        return result

    def wide(self, name: str, values: np.ndarray) -> np.ndarray:
        """The values in float64 in the array of that name; themselves where they are float64 and contiguous."""
        if values.dtype == np.float64 and values.flags.c_contiguous:
            return values
        result = self.array(name, values.shape, np.float64)
        np.copyto(result, values)
        return result
