"""The HTML report of a run: one file that needs nothing else, the answer first.

Conventions: every number in it is an element that names where it comes from, so that a program can hold it
to the records: ``data-v`` is the value as recorded, ``data-record`` the cell and ``data-path`` the JSON pointer (RFC
6901) into that cell's line of ``records.jsonl``. Where a number is made of two, both are named, separated by a space,
and ``data-op`` says how (``sum``, ``mean_difference``). The record ``environment.json`` is that file, and ``answer``
counts the engine's choices (``/policy/fix/taken`` and ``/policy/fix/tied``). A sentence of the report or the engine
stands in an element with ``data-said``, which names its kind. Nothing is said by colour alone.
"""

from __future__ import annotations

from precision_eval.report.html.writing import FILE_NAME, LARGEST_BYTES, path_in_commands, render_html, write_html

__all__ = ["FILE_NAME", "LARGEST_BYTES", "path_in_commands", "render_html", "write_html"]
