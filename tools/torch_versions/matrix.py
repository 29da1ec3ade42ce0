"""The suite's tests under several Pythons and torch versions, each in an environment of its own.

A combination is written ``3.12/2.13.0``. What cannot be installed here (no such interpreter, no such wheel) is named
with its reason and is no failure of the tests.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from precision_eval.core.errors import ParameterError
from tools.torch_versions.environments import (
    EnvironmentBuildError,
    TorchEnvironment,
    build_environment,
    build_for_here,
    find_uv,
    fitting_constraints,
    run_step,
)

ROOT = Path(__file__).resolve().parents[2]
COMBINATIONS = ("3.11/2.6.0", "3.11/2.13.0", "3.12/2.13.0", "3.13/2.13.0", "3.11/2.15.0", "3.13/2.15.0")


def run_tests(combinations: Sequence[str], *, base: Path, torch_build: str, pytest: Sequence[str]) -> bool:
    """Run the tests under each combination and print what came of it; return whether no test failed."""
    build, console, passed = build_for_here(torch_build), Console(), True
    for text in combinations:
        python, _, version = text.partition("/")
        if not version:
            raise ParameterError(f"combination {text!r}; expected PYTHON/TORCH such as {COMBINATIONS[0]}")
        environment = TorchEnvironment(version=version, python=python, root=ROOT, base=base.resolve())
        try:
            note = build_environment(environment, build=build)
            _add_tests_needs(environment)
        except EnvironmentBuildError as error:
            outcome = f"not run: {error}"
        else:
            code, closing = _tested(environment, pytest)
            passed &= code == 0
            outcome = f"Python {note.python}, torch {note.torch_version}: {closing}"
        console.print(f"{text}: {outcome}", highlight=False, markup=False, soft_wrap=True)
    return passed


def _add_tests_needs(environment: TorchEnvironment) -> None:
    """Install what the tests need, at the locked versions where this Python and torch allow them."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as constraints:
        constraints.write(fitting_constraints((ROOT / "constraints.txt").read_text(encoding="utf-8"), ()))
        constraints.flush()
        command = [find_uv(), "pip", "install", "--quiet", "--python", str(environment.interpreter)]
        run_step([*command, "--constraint", constraints.name, *extras["dev"]], environment, dict(os.environ))
        run_step([*command, "--no-deps", "--editable", str(ROOT)], environment, dict(os.environ))


def _tested(environment: TorchEnvironment, pytest: Sequence[str]) -> tuple[int, str]:
    """Run pytest there; return its exit code and closing line."""
    command = [str(environment.interpreter), "-m", "pytest", "-p", "no:benchmark", "-m", "not slow", *pytest]
    variables = {**os.environ, "PYTHONPATH": str(ROOT)}
    log = environment.folder / "tests.log"
    with log.open("w", encoding="utf-8") as file:
        code = subprocess.run(command, cwd=ROOT, env=variables, stdout=file, check=False).returncode
    closing = re.findall(
        r"^=* ?(.*(?:passed|failed|error).* in [\d.:]+s.*?)[ =]*$", log.read_text(encoding="utf-8"), re.M
    )
    return code, f"{closing[-1] if closing else f'pytest ended with {code}'}; {log}"
