"""Templates of HTML reports: one environment for all of them. Templates lie in the folders of the modules that fill
them; ``page_base.css`` here is shared. Values are escaped, control characters made visible, and a name that is not
given is an error.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from precision_eval.core.formatting import visible

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
        finalize=_written,
    )
    environment.tests["web_address"] = lambda text: text.startswith("https://")
    return environment


def _written(value: Any) -> Any:
    if isinstance(value, Markup):
        return Markup(visible(str(value)))  # noqa: S704 - was markup before
    return visible(value) if isinstance(value, str) else value
