"""``python -m precision_eval``: the command line where the script is not on the path."""

from precision_eval.cli.commands import main

if __name__ == "__main__":
    main()
