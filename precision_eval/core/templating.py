"""Templates of HTML reports: one environment for all of them. Templates lie in the folders of the modules that fill
them; ``page_base.css`` here is shared. Values are escaped, and a name that is not given is an error.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jinja2 import Environment


def template_environment(*folders: Path) -> Environment:
    """Return an environment that finds templates in these folders, then among the shared ones."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader([*folders, Path(__file__).parent]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.tests["web_address"] = lambda text: text.startswith("https://")
    return environment
