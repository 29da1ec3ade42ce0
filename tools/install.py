"""``python tools/install.py REQUIREMENT ...``: install into this environment with uv, with pip's settings.

uv takes half of pip's processor time and downloads in parallel. It reads none of pip's settings, so they are handed on;
a setting that uv has no option for, or a failure, leaves the work to pip. ``--unconstrained`` leaves constraints.txt
aside.
"""

import ast
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

UNCONSTRAINED = "--unconstrained"
CONSTRAINTS = ("-c", "constraints.txt")
PIP = (sys.executable, "-m", "pip")
BY_PIP = (*PIP, "install", "--quiet", "--no-compile")
BY_UV = (str(Path(sys.executable).with_name("uv")), "pip", "install", "--quiet")

# Settings of pip, each of one or more words, and the option of uv that takes one of them.
OPTIONS = {
    "index-url": "--default-index", "extra-index-url": "--index", "find-links": "--find-links",
    "constraint": "--constraint",
}  # fmt: skip
VARIABLES = {"cert": "SSL_CERT_FILE", "timeout": "UV_HTTP_TIMEOUT", "default-timeout": "UV_HTTP_TIMEOUT"}
# Settings that do not bear on what is installed.
UNNEEDED = {"disable-pip-version-check", "no-input", "progress-bar", "quiet", "root-user-action", "no-compile"}
UNNEEDED |= {"no-cache-dir", "cache-dir", "retries"}

# Modules that have wheels with their library and a pure one without. Of several indexes, uv takes a version from the
# first that holds it, whichever wheel that is; pip takes the best wheel of all.
BINARY = ("soundfile",)
_WITHOUT_LIBRARY = """
import importlib.metadata, importlib.util, sys
for name in sys.argv[1:]:
    if importlib.util.find_spec(name):
        try:
            __import__(name)
        except OSError:
            print(f"{name}=={importlib.metadata.version(name)}")
"""


def settings_of(lines: Iterable[str]) -> dict[str, str]:
    """Return what ``pip config list`` says of an installation: {setting: value}; a later section goes first."""
    sections: dict[str, dict[str, str]] = {"global": {}, "install": {}, ":env:": {}}
    for line in lines:
        key, _, value = line.partition("=")
        section, _, name = key.rpartition(".")
        if section in sections:
            sections[section][name] = ast.literal_eval(value)
    return sections["global"] | sections["install"] | sections[":env:"]


def uv_arguments(settings: dict[str, str]) -> list[str] | None:
    """Return the options of uv for settings of pip; None where uv has no option for one."""
    if set(settings) - set(OPTIONS) - set(VARIABLES) - UNNEEDED:
        return None
    words = [f"{OPTIONS[name]}={word}" for name, value in settings.items() if name in OPTIONS for word in value.split()]
    return ["--index-strategy=unsafe-best-match", *words]  # as pip does, which trusts every index alike


def reinstall_by_pip(python: str) -> list[str]:
    """Return the command that replaces what came without its library, empty where nothing did."""
    command = [python, "-c", _WITHOUT_LIBRARY, *BINARY]
    lacking = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    return [*BY_PIP, "--force-reinstall", "--no-deps", *lacking] if lacking else []


def main(words: list[str]) -> int:
    """Install; return the exit code of what did it."""
    requirements = [word for word in words if word != UNCONSTRAINED]
    constraints = () if UNCONSTRAINED in words else CONSTRAINTS
    listed = subprocess.run([*PIP, "config", "list"], capture_output=True, text=True, check=True).stdout
    settings = settings_of(listed.splitlines())
    arguments = uv_arguments(settings)
    if arguments is not None and subprocess.run([*BY_PIP, *CONSTRAINTS, "uv"], check=False).returncode == 0:
        variables = {VARIABLES[name]: value for name, value in settings.items() if name in VARIABLES}
        environment = os.environ | variables | {"VIRTUAL_ENV": sys.prefix}
        command = [*BY_UV, *constraints, *arguments, *requirements]
        if subprocess.run(command, env=environment, check=False).returncode == 0:
            again = reinstall_by_pip(sys.executable)
            return subprocess.run(again, check=False).returncode if again else 0
    return subprocess.run([*BY_PIP, *constraints, *requirements], check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
