"""A fix on a model: storage, agreement and runtime around one call.

Contexts of :class:`AppliedFix`, from the outside in:

- :meth:`~AppliedFix.stored` holds parameters and floating buffers in the fix's storage dtype;
- :meth:`~AppliedFix.agreeing` installs the casts where operands disagree. It is cheap, so that several fixes, each on
  its own copy of a model, interleave in one process; one at a time in a process;
- entering the object itself does both.

A pinned attention backend is in force around each call, or with :meth:`~AppliedFix.blocked` around a block of calls.
"""

from __future__ import annotations

import copy
import itertools
import logging
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from itertools import chain
from types import FunctionType, TracebackType
from typing import Any, cast

import torch
from torch import nn

from precision_eval.core.errors import ParameterError, PrecisionEvalError, UnsupportedError
from precision_eval.core.targets import first_line
from precision_eval.fixes.choices import FixChoices
from precision_eval.fixes.compute import compute_with
from precision_eval.fixes.late_dynamo import DYNAMO
from precision_eval.fixes.packing import Packed, in_dtype
from precision_eval.fixes.patches import (
    AgreementMode,
    Swap,
    add_write_casts,
    eager_swaps,
    install_swaps,
    modes_see_writes,
    no_fused_encoder,
)
from precision_eval.fixes.pins import pin_sdpa
from precision_eval.fixes.sites import site_wrapper
from precision_eval.fixes.storage import store_as

# Compiled variants that one function may have. Dynamo's limit of 8 sends the ninth to eager without a word.
RECOMPILE_LIMIT = 64

_agreeing: list[AppliedFix] = []  # at most one: attributes are swapped for the whole process
_serial = itertools.count()


class FixStateError(PrecisionEvalError, RuntimeError):
    """A fix was entered twice, inside another one, or called outside its context."""


def _device_type(model: nn.Module) -> str:
    for tensor in chain(model.parameters(), model.buffers()):
        return tensor.device.type
    return torch.get_default_device().type


def _with_new_code(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Copy a closure with another code object; Dynamo keeps its cache, and its limits, per code object."""
    assert isinstance(function, FunctionType)
    code = function.__code__.replace(co_name=f"{name}_{next(_serial)}")
    return FunctionType(code, function.__globals__, function.__name__, function.__defaults__, function.__closure__)


def forget_compiled() -> None:
    """Forget what was compiled and traced, and name what is compiled from now on as a new process does."""
    global _serial
    if DYNAMO in sys.modules:
        torch._dynamo.reset()
    _serial = itertools.count()


@contextmanager
def _quiet() -> Iterator[None]:
    """Hold back the stack trace that Dynamo logs for each frame whose error it suppresses."""
    logger = logging.getLogger("torch._dynamo.convert_frame")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


@contextmanager
def _restore_autocast(device_type: str) -> Iterator[None]:
    """Undo what a compiled graph leaves of its autocast."""
    enabled = torch.is_autocast_enabled(device_type)
    dtype = torch.get_autocast_dtype(device_type)
    depth = torch.autocast_increment_nesting() - 1
    torch.autocast_decrement_nesting()
    try:
        yield
    finally:
        left = torch.autocast_increment_nesting() - 1
        torch.autocast_decrement_nesting()
        for _ in range(left - depth):
            torch.autocast_decrement_nesting()
        if left > depth:
            torch.clear_autocast_cache()
            torch.set_autocast_enabled(device_type, enabled)
            torch.set_autocast_dtype(device_type, dtype)


def _settings_of(compile_mode: str | None) -> dict[str, Any]:
    """Return what a mode of ``torch.compile`` sets in inductor."""
    if compile_mode is None:
        return {}
    from torch._inductor import list_mode_options

    return dict(list_mode_options(compile_mode))


def _stepping(compiled: Callable[..., Any], settings: Mapping[str, Any]) -> Callable[..., Any]:
    """Begin each call anew where the compiler captures graphs, or it takes another fix's call for the step before."""
    if not settings:
        return compiled

    def call(*inputs: torch.Tensor) -> Any:
        torch.compiler.cudagraph_mark_step_begin()
        return compiled(*inputs)

    return call


def _upstream(model: nn.Module) -> AbstractContextManager[None]:
    while isinstance(model, Packed):
        model = model.model
    hold = getattr(type(model), "upstream", None)  # of the class: a part of the model may be called so
    if not callable(hold):
        raise UnsupportedError("nothing to apply: this model does not define what landed in its project")
    return cast(AbstractContextManager[None], hold(model))


Context = AbstractContextManager[Any]


def make_change(model: nn.Module, fix: FixChoices) -> tuple[nn.Module, Context | None]:
    """Return a changed copy of a model, and the context that the change asks calls to be made in.

    The model itself where the fix changes nothing.
    """
    if fix.change is None:
        return model, None
    held = copy.deepcopy(model)
    try:
        result = fix.change(held.model if isinstance(held, Packed) else held)
    except Exception as error:
        raise ParameterError(
            f"the candidate {fix.id} raises {type(error).__name__}: {first_line(error)}; it is called with the model"
        ) from error
    if result is not None and not isinstance(result, nn.Module | AbstractContextManager):
        raise ParameterError(
            f"the candidate {fix.id} returns a {type(result).__name__}; expected a model, None where it changed the "
            "model in place, or a context manager"
        )
    if not isinstance(result, nn.Module):
        return held, result
    if not isinstance(held, Packed):
        return result, None
    held.model = result
    return held, None


def _enterable_again(context: Context | None) -> Context:
    """Return a context to enter once more: one that a generator makes can be entered only once."""
    recreate = getattr(context, "_recreate_cm", None)  # what contextlib itself uses where one is a decorator
    return nullcontext() if context is None else recreate() if recreate else context


class AppliedFix:
    """A fix on one model; a context manager that is also the call."""

    fix: FixChoices

    def __init__(
        self,
        fix: FixChoices,
        model: nn.Module,
        *,
        mode: str = "eager",
        backend: str = "inductor",
        sdpa_backend: str | None = None,
        compile_mode: str | None = None,
    ) -> None:
        if _agreeing:
            raise FixStateError(
                f"cannot put '{fix.id}' on a model while '{_agreeing[0].fix.id}' is in force; leave its block first"
            )
        self.fix = fix
        self.mode = mode
        self.backend = backend
        self.sdpa_backend = sdpa_backend
        self.compile_mode = compile_mode
        self._is_pin_held = sdpa_backend is None
        self.dtype: torch.dtype | None = getattr(torch, fix.storage, None)
        self._stored = False
        self._entered: ExitStack | None = None
        self._context: Context | None = None  # of a user's change; in force around calls only
        self._put_on(model)

    def _put_on(self, model: nn.Module) -> None:
        self.model = model
        self.function = self._function()
        self._swaps = self._eager_swaps()
        self._run = self._compiled() if self.mode == "compiled" else self.function

    @property
    def _casts(self) -> bool:
        return self.fix.agreement in ("activation_to_storage", "storage_to_activation")

    def _eager_swaps(self) -> list[Swap]:
        if not self._casts or self.mode != "eager":
            return []
        return eager_swaps(self.model, lambda site, original: site_wrapper(site, self.fix.agreement, original))

    def _compiled(self) -> Callable[..., Any]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of torch's own parts, imported here
            through_graph = self._casts and not modes_see_writes()
            settings = _settings_of(self.compile_mode)
            backend = add_write_casts(self.backend, settings) if through_graph else self.backend
            options: dict[str, Any] = {"options": settings} if settings and not through_graph else {}
            return _stepping(torch.compile(self.function, backend=backend, **options), settings)

    def _function(self) -> Callable[..., Any]:
        """Build what is called, or traced: the model, inside the contexts that belong to each call."""
        model = self.model
        if self.fix.agreement == "autocast":
            device_type = _device_type(model)

            def autocast_call(*inputs: torch.Tensor) -> Any:
                with torch.autocast(device_type):
                    return model(*inputs)

            return _with_new_code(autocast_call, self.fix.id)
        if self.mode == "eager":
            return model
        if not self._casts:

            def plain_call(*inputs: torch.Tensor) -> Any:
                return model(*inputs)

            return _with_new_code(plain_call, self.fix.id)
        agreement = AgreementMode(self.fix.agreement)

        def agreeing_call(*inputs: torch.Tensor) -> Any:
            with agreement:
                return model(*inputs)

        return _with_new_code(agreeing_call, self.fix.id)

    def __call__(self, *inputs: torch.Tensor) -> Any:
        if not _agreeing or _agreeing[0] is not self:
            raise FixStateError(f"'{self.fix.id}' is not in force; call inside `with` it, or inside its agreeing()")
        if self._is_pin_held:
            return self._run(*inputs)
        with self.around_call():
            return self._run(*inputs)

    def bind(self, *inputs: torch.Tensor) -> Callable[[], Any]:
        """Return the call to time in a block that has the fix in force: of a fix that only stores, the model's own."""
        is_plain = self._is_pin_held and self._run is self.model and not self._casts
        return partial(self.model if is_plain else self, *inputs)

    @contextmanager
    def around_call(self) -> Iterator[None]:
        """Pin the kernel of attention and set how it computes, around one call."""
        with pin_sdpa(self.sdpa_backend), compute_with(self.fix.compute):
            yield

    def prepare(self, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """Bring stored inputs into the storage dtype; to be done once, outside timing."""
        return cast(tuple[Any, ...], in_dtype(inputs, self.dtype))

    @contextmanager
    def stored(self) -> Iterator[AppliedFix]:
        """Hold the model in the fix's storage dtype for the time of a block."""
        if self._stored:
            raise FixStateError(f"'{self.fix.id}' already holds this model's storage; leave that block first")
        self._stored, model = True, self.model
        try:
            with self._holding(model) as (held, self._context):
                if held is not model:
                    self._put_on(held)
                yield self
        finally:
            self._stored, self._context = False, None
            if self.model is not model:
                self._put_on(model)

    @contextmanager
    def holding(self, model: nn.Module) -> Iterator[nn.Module]:
        """Hold a model as the fix stores it; yields a copy where the fix is a user's change."""
        with self._holding(model) as (held, context), context or nullcontext():
            yield held

    @contextmanager
    def _holding(self, model: nn.Module) -> Iterator[tuple[nn.Module, Context | None]]:
        if self.fix.storage == "per_case":
            with _upstream(model):
                yield model, None
            return
        held, context = make_change(model, self.fix)
        with store_as(held, self.dtype):
            yield held, context

    @contextmanager
    def agreeing(self) -> Iterator[AppliedFix]:
        """Have the call-site casts in force for the time of a block."""
        if _agreeing:
            raise FixStateError(f"'{_agreeing[0].fix.id}' is in force; leave its block before '{self.fix.id}'")
        _agreeing.append(self)
        try:
            unfused = no_fused_encoder() if self._casts else nullcontext()
            restored = _restore_autocast(_device_type(self.model)) if self.mode == "compiled" else nullcontext()
            change, compute = _enterable_again(self._context), compute_with(self.fix.compute)
            with torch.no_grad(), restored, unfused, install_swaps(self._swaps), self._runtime(), change, compute:
                yield self
        finally:
            _agreeing.clear()

    @contextmanager
    def blocked(self) -> Iterator[AppliedFix]:
        """Have the fix in force for a block of timed calls, and the pin around them all."""
        was_held = self._is_pin_held
        with pin_sdpa(self.sdpa_backend), self.agreeing():
            self._is_pin_held = True
            try:
                yield self
            finally:
                self._is_pin_held = was_held

    @contextmanager
    def _runtime(self) -> Iterator[None]:
        if self.mode == "eager":
            yield
            return
        limit = "recompile_limit" if hasattr(torch._dynamo.config, "recompile_limit") else "cache_size_limit"
        changes = {limit: RECOMPILE_LIMIT, "suppress_errors": self.fix.suppress_errors}
        with torch._dynamo.config.patch(changes), _quiet() if self.fix.suppress_errors else nullcontext():
            yield

    def __enter__(self) -> AppliedFix:
        if self._entered is not None:
            raise FixStateError(f"'{self.fix.id}' is entered already; leave it first")
        with ExitStack() as stack:
            stack.enter_context(self.stored())
            stack.enter_context(self.agreeing())
            self._entered = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        stack, self._entered = self._entered, None
        assert stack is not None
        stack.__exit__(kind, error, trace)
