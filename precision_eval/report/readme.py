"""Writes the result tables of a run into a README, so that its numbers are regenerated and never typed.

``python -m precision_eval.report.readme RUN_DIR [--readme README.md]`` replaces what stands between
``<!-- results:begin -->`` and ``<!-- results:end -->``; everything outside is left byte for byte.

Contents: :func:`results_markdown`, :func:`update_readme`, :func:`main`.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from precision_eval.errors import ParameterError, PrecisionEvalError
from precision_eval.report.data import Run, load_run
from precision_eval.report.tables import audio_table, cost_table
from precision_eval.report.text import environment_line, findings, markdown_table

BEGIN = "<!-- results:begin -->"
END = "<!-- results:end -->"
FIGURES_SHOWN = ("tradeoff-", "audio-")


def results_markdown(run: Run, *, relative_to: Path) -> str:
    """Return findings, tables and main figures of a run as Markdown.

    Parameters
    ----------
    run : Run
        The records.
    relative_to : Path
        Folder that links to figures start from; a figure that was not drawn is not linked.
    """
    place = Path(os.path.relpath(run.directory, relative_to)).as_posix()
    parts = [f"From the records in `{place}`. {environment_line(run)}".strip()]
    parts.append("\n".join(f"- **{title}.** {' '.join(sentences)}" for title, sentences in findings(run)))
    for section in run.sections:
        for table in (cost_table(section), audio_table(run, section)):
            if table is not None:
                parts.append(markdown_table(table, heading=True))
    drawn = sorted((run.directory / "figures").glob("*.png"))
    shown = [path for path in drawn if path.name.startswith(FIGURES_SHOWN)]
    parts += [f"![{path.stem}]({Path(os.path.relpath(path, relative_to)).as_posix()})" for path in shown]
    return "\n\n".join(part for part in parts if part)


def update_readme(readme: Path, run: Run) -> bool:
    """Replace the results in `readme` by those of `run`.

    Returns
    -------
    bool
        Whether the file changed.

    Raises
    ------
    ParameterError
        The file does not hold the two markers once each, in order.
    """
    text = readme.read_text(encoding="utf-8")
    begin, end = text.find(BEGIN), text.find(END)
    if text.count(BEGIN) != 1 or text.count(END) != 1 or end < begin:
        raise ParameterError(f"{readme} must hold {BEGIN} and then {END}, once each; add these two lines")
    results = results_markdown(run, relative_to=readme.resolve().parent)
    new = f"{text[: begin + len(BEGIN)]}\n{results}\n{text[end:]}"
    if new == text:
        return False
    readme.write_text(new, encoding="utf-8")
    return True


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m precision_eval.report.readme", description=__doc__.splitlines()[0])
    parser.add_argument("run_dir", type=Path, help="folder of a run, with records.jsonl")
    parser.add_argument("--readme", type=Path, default=Path("README.md"))
    chosen = parser.parse_args(arguments)
    try:
        changed = update_readme(chosen.readme, load_run(chosen.run_dir.resolve()))
    except (PrecisionEvalError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    print(f"{chosen.readme}: {'written' if changed else 'already up to date'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
