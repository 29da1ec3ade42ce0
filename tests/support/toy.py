"""Measures that do what their fix is called, for tests of the runner; imported by workers."""

import os
import signal
import time

from precision_eval.core.cells import failed, passed
from precision_eval.core.errors import UnsupportedError
from precision_eval.core.files import described


def act(fix, run_dir):
    """Do to this process what a fix's name says."""
    if fix == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    elif fix == "hangs":
        time.sleep(300)
    elif fix == "takes":
        raise MemoryError
    elif fix == "unsupported":
        raise UnsupportedError("no such format here")
    elif fix == "raises":
        raise RuntimeError("Expected query, key, and value to have the same dtype")
    elif fix == "dies_once" and not (run_dir / "died").exists():
        (run_dir / "died").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    elif fix == "waits":
        time.sleep(3)
    elif fix == "breaks":
        break_device()
        raise RuntimeError("CUDA error: device-side assert triggered")
    elif fix == "breaks_late":
        break_device()
    elif fix == "writes":
        (run_dir / "made.txt").write_text("made")
        return passed(fix, {"files": described(run_dir, run_dir / "made.txt")})
    return passed(fix, {"value": float("nan") if fix == "nan" else 1.0, "pid": os.getpid(), "cores": _cores()})


def break_device():
    """Have every later call on the device raise, as after an assertion in a kernel of CUDA."""
    from precision_eval.measure import kept

    def raising(device):
        raise RuntimeError("CUDA error: device-side assert triggered\nCUDA kernel errors might be reported later")

    kept.probe_device = raising


def _cores():
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


def first(cell, run_dir):
    """Act, in any process."""
    with (run_dir / "ran.txt").open("a") as file:
        file.write(f"{cell.id} {time.monotonic()}\n")
    time.sleep(0.05)
    return [act(fix, run_dir) for fix in cell.fixes]


def group(cell, run_dir):
    """Measure several fixes in one process; here only, ``weak`` is lost and ``rough`` raises."""
    with (run_dir / "ran.txt").open("a") as file:
        file.write(f"{cell.id} {time.monotonic()}\n")
    if "weak" in cell.fixes:
        os.kill(os.getpid(), signal.SIGKILL)
    if "rough" in cell.fixes:
        raise RuntimeError("too rough")
    if "asserts" in cell.fixes:  # every fix that is measured after it sees its error
        break_device()
        return [failed(fix, "raised", "CUDA error: device-side assert triggered") for fix in cell.fixes]
    return [passed(fix, {"together": len(cell.fixes)}) for fix in cell.fixes]


def settings(cell, run_dir):
    """Tell what is set in this process, and then set something else, or draw, or compile, as the fix is called."""
    found = {name: repr(value) for name, value in _read_settings().items()}
    change = _CHANGES.get(cell.fixes[0])
    if change is not None:
        change()
        assert {name: repr(value) for name, value in _read_settings().items()} != found
    return [passed(cell.fixes[0], {"found": found, "pid": os.getpid()})]


def _read_settings():
    import random
    from importlib import import_module

    import numpy as np
    import torch
    import torch._dynamo

    from precision_eval.measure.kept import _CONFIGS, _config_of, _settings

    values = {name: read() for name, (read, _) in _settings().items()}
    for module in map(import_module, _CONFIGS):
        values |= {f"{module.__name__}.{name}": value for name, value in _config_of(module).items()}
    values["threads"], values["flushed"] = torch.get_num_threads(), float(torch.tensor(1e-310).double() * 1)
    values["drawn"] = (torch.get_rng_state().sum(), np.random.get_state()[1].sum(), random.getstate())  # noqa: NPY002
    values["autocast depth"] = torch.autocast_increment_nesting()
    torch.autocast_decrement_nesting()
    values["compiled"] = len(torch._dynamo.convert_frame.input_codes.seen)
    return values


def _compile():
    import torch

    torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))


def _draw():
    import random

    import numpy as np
    import torch

    torch.rand(1), np.random.rand(), random.random()  # noqa: NPY002


def _set(path, value):
    def change():
        from operator import attrgetter

        import torch
        import torch._dynamo

        owner, _, name = path.rpartition(".")
        target = attrgetter(owner)(torch) if owner else torch
        wanted = torch.float64 if value == "float64" else value
        getattr(target, name)(wanted) if callable(getattr(target, name)) else setattr(target, name, wanted)

    return change


def _autocast():
    import torch

    torch.autocast("cpu").__enter__()


_CHANGES = {
    "dtype": _set("set_default_dtype", "float64"),
    "precision": _set("set_float32_matmul_precision", "high"),
    "tf32": _set("backends.cudnn.allow_tf32", False),
    "flash": _set("backends.cuda.enable_flash_sdp", False),
    "half_sums": _set("backends.cuda.matmul.allow_bf16_reduced_precision_reduction", False),
    "grad": _set("_C._set_grad_enabled", False),
    "deterministic": _set("use_deterministic_algorithms", True),
    "threads": _set("set_num_threads", 2),
    "dynamo": _set("_dynamo.config.suppress_errors", True),
    "draws": _draw,
    "compiles": _compile,
    "autocasts": _autocast,
}
