"""The environment of templates of HTML pages; ``page_base.css`` beside it is what all pages share."""

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
        finalize=_write_visibly,
    )
    environment.tests["web_address"] = lambda text: text.startswith("https://")
    return environment


def _write_visibly(value: Any) -> Any:
    if isinstance(value, Markup):
        return Markup(visible(str(value)))  # noqa: S704 - was markup before
    return visible(value) if isinstance(value, str) else value
