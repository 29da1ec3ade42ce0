"""The report of a run, made from its records alone: tables, figures, Markdown and CSV."""
