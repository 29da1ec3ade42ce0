"""The command line, ``precision-eval``; ``precision-eval --help`` lists its commands."""

from __future__ import annotations

import sys
from collections.abc import Callable

from precision_eval.core.errors import PrecisionEvalError

EXIT_BAD_INPUT = 2
EXIT_INTERRUPTED = 130


def main() -> None:
    """Run the command line and exit."""
    from precision_eval.cli.commands import app

    run_application(app, "precision-eval")


def run_application(app: Callable[[], None], name: str) -> None:
    """Run a command line; bad input ends with one line and exit code 2."""
    try:
        app()
    except PrecisionEvalError as error:
        _fail(error, name)
    except Exception as error:
        if not _is_audio_error(error):
            raise
        _fail(error, name)


def _fail(error: Exception, name: str) -> None:
    """Print an error as one line and exit with code 2."""
    print(f"{name}: {' '.join(str(error).split())}", file=sys.stderr)
    sys.exit(EXIT_BAD_INPUT)


def _is_audio_error(error: Exception) -> bool:
    """Say whether an error is one that ``audio_metrics`` raises on purpose, without importing it."""
    module = sys.modules.get("audio_metrics.errors")
    return module is not None and isinstance(error, module.AudioMetricsError)
