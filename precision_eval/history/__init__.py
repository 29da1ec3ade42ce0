"""What is tracked over commits and torch versions, and what changed between them. Importing this loads no torch."""
