"""Git repositories of tests."""

import subprocess


def git(folder, *arguments):
    """Run git as an author of its own; return what it prints."""
    command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout.strip()
