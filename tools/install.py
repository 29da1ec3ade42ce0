"""``python tools/install.py REQUIREMENT ...``: install into this environment with uv, told what pip's settings say.

uv takes half of pip's processor time and downloads side by side. It reads none of pip's settings, so they are handed
on; a setting that uv has no word for, or a failure, leaves the work to pip. Only pip is needed beforehand.
"""

import ast
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

PIP = (sys.executable, "-m", "pip")
BY_PIP = (*PIP, "install", "--quiet", "--no-compile", "-c", "constraints.txt")
BY_UV = (str(Path(sys.executable).with_name("uv")), "pip", "install", "--quiet", "-c", "constraints.txt")

OPTIONS = {
    "index-url": "--default-index", "extra-index-url": "--index", "find-links": "--find-links",
    "constraint": "--constraint",
}  # fmt: skip
"""Settings of pip, each of one or more words, and the option of uv that takes one of them."""

VARIABLES = {"cert": "SSL_CERT_FILE", "timeout": "UV_HTTP_TIMEOUT", "default-timeout": "UV_HTTP_TIMEOUT"}
UNNEEDED = {"disable-pip-version-check", "no-input", "progress-bar", "quiet", "root-user-action", "no-compile"}
UNNEEDED |= {"no-cache-dir", "cache-dir", "retries"}
"""Settings that do not bear on what is installed."""

BINARY = ("soundfile",)
"""Modules that have wheels with their library and a pure one without: of several indexes, uv takes a version from the
first that holds it, whichever wheel that is; pip takes the best wheel of all."""


def settings_of(lines: Iterable[str]) -> dict[str, str]:
    """Return what ``pip config list`` says of an installation: {setting: value}; a later section goes before."""
    found: dict[str, dict[str, str]] = {"global": {}, "install": {}, ":env:": {}}
    for line in lines:
        key, _, value = line.partition("=")
        section, _, name = key.rpartition(".")
        if section in found:
            found[section][name] = ast.literal_eval(value)
    return found["global"] | found["install"] | found[":env:"]


def uv_arguments(settings: dict[str, str]) -> list[str] | None:
    """Return the options of uv for settings of pip; None where uv has no word for one."""
    if set(settings) - set(OPTIONS) - set(VARIABLES) - UNNEEDED:
        return None
    given = [f"{OPTIONS[name]}={word}" for name, value in settings.items() if name in OPTIONS for word in value.split()]
    return ["--index-strategy=unsafe-best-match", *given]  # as pip does, which trusts every index alike


_WITHOUT_LIBRARY = """
import importlib.metadata, importlib.util, sys
for name in sys.argv[1:]:
    if importlib.util.find_spec(name):
        try:
            __import__(name)
        except OSError:
            print(f"{name}=={importlib.metadata.version(name)}")
"""


def by_pip_again(python: str) -> list[str]:
    """Return what has pip install anew what came without its library into an interpreter's environment, if anything."""
    command = [python, "-c", _WITHOUT_LIBRARY, *BINARY]
    lacking = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    anew = [python, "-m", "pip", "install", "--quiet", "--no-compile", "--force-reinstall", "--no-deps"]
    return [*anew, *lacking] if lacking else []


def main(requirements: list[str]) -> int:
    """Install; return pip's exit code where pip did it."""
    listed = subprocess.run([*PIP, "config", "list"], capture_output=True, text=True, check=True).stdout
    settings = settings_of(listed.splitlines())
    arguments = uv_arguments(settings)
    if arguments is not None and subprocess.run([*BY_PIP, "uv"], check=False).returncode == 0:
        told = {VARIABLES[name]: value for name, value in settings.items() if name in VARIABLES}
        environment = os.environ | told | {"VIRTUAL_ENV": sys.prefix}
        if subprocess.run([*BY_UV, *arguments, *requirements], env=environment, check=False).returncode == 0:
            again = by_pip_again(sys.executable)
            return subprocess.run(again, check=False).returncode if again else 0
    return subprocess.run([*BY_PIP, *requirements], check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
