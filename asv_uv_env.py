"""The environments of ``asv.conf.json`` and ``asv.versions.json``: virtualenvs filled by uv in one go.

asv calls pip for each requirement, which fetches torch again for each. asv loads this file as a plugin; it lies beside
the configurations since nothing that is installed may need asv.
"""

from __future__ import annotations

from pathlib import Path

from asv.environment import get_env_name
from asv.plugins.virtualenv import Virtualenv

ROOT = Path(__file__).resolve().parent


class FilledByUv(Virtualenv):
    """A virtualenv by another installer; its results bear the names that a virtualenv's bear."""

    tool_name = "uv-virtualenv"

    @property
    def name(self):
        """Name of the environment in results."""
        return get_env_name("virtualenv", self._python, self._requirements, self._tagged_env_vars)

    def _install_requirements(self):
        wanted = {"wheel": "", **self._requirements, **self._base_requirements}
        named = [key.removeprefix("pip+") + (f"=={version}" if version else "") for key, version in wanted.items()]
        # constraints.txt fits one torch; what another torch needs may differ from it.
        fits = f"torch=={self._requirements['torch']}\n" in (ROOT / "constraints.txt").read_text(encoding="utf-8")
        options = [] if fits else ["--unconstrained"]
        self.run_executable("python", [str(ROOT / "tools" / "install.py"), *options, *named], cwd=ROOT)
        # Python compiles it while the package is built, and not when asv is about to measure.
        self.run_executable("python", ["-c", "import torch._inductor.compile_fx"], return_popen=True)
