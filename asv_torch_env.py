"""asv's environments of ``asv.versions.json``: one per torch version.

How one is made is told by :mod:`tools.torch_versions.environments`. asv loads this file as a plugin; it lies beside
the configuration since nothing that is installed may need asv. The torch version is a requirement of asv's matrix, so
result files name it; the build (cpu, slim or cuda) is written among their environment variables as ``TORCH_BUILD``.
"""

from __future__ import annotations

import re
from pathlib import Path

from asv import util
from asv.console import log
from asv.environment import Environment

from precision_eval.core.errors import PrecisionEvalError
from tools.torch_versions.environments import (
    TorchEnvironment,
    build_environment,
    build_for_here,
    folder_name,
    read_note,
)

ROOT = Path(__file__).resolve().parent


class TorchVersion(Environment):
    """One torch version; needs ``torch`` and nothing else in the matrix."""

    tool_name = "torch"
    matches_python_fallback = False

    def __init__(self, conf, python, requirements, tagged_env_vars):
        if set(requirements) != {"torch"}:
            raise util.UserError(
                f"environment_type torch takes the requirement torch alone, not {sorted(requirements)}"
            )
        self._requirements = requirements
        self.wanted = TorchEnvironment(
            version=requirements["torch"], python=python, root=ROOT, base=Path(conf.env_dir).resolve()
        )
        super().__init__(conf, python, requirements, tagged_env_vars)

    @classmethod
    def matches(cls, python):
        """Take minor versions of Python."""
        return re.fullmatch(r"3\.\d+", python) is not None

    @property
    def dir_name(self):
        """Name of the environment's folder."""
        return folder_name(self._requirements["torch"], self._python)

    @property
    def env_vars(self):
        """What asv writes beside the results: also the build, once it is known."""
        note = read_note(self.wanted)
        return {**super().env_vars, **({"TORCH_BUILD": note.build} if note else {})}

    def check_presence(self):
        """Say whether it is finished."""
        return read_note(self.wanted) is not None

    def _setup(self):
        try:
            build_environment(
                self.wanted,
                build=build_for_here("auto"),
                say=lambda text: log.info(f"torch {self.wanted.version}: {text}"),
            )
        except PrecisionEvalError as error:
            raise util.UserError(str(error)) from error

    def run(self, args, **kwargs):
        """Run its Python."""
        return self.run_executable("python", args, **kwargs)
