"""The exit codes of every command line of this project."""

from __future__ import annotations

EXIT_DONE = 0
EXIT_VERDICT = 1
EXIT_BAD_INPUT = 2
EXIT_SUITE_FAILED = 3
EXIT_COULD_NOT_TELL = 4
EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143

EXIT_CODES_HELP = (
    "Exit codes: 0 done, or compared and no worse; 1 a verdict says no (worse, a fault, no fix within the limits); "
    "2 bad input, or an output that cannot be written; 3 the suite itself failed; 4 could not tell; "
    "130 and 143 stopped by Ctrl-C or SIGTERM, with what was measured kept."
)
