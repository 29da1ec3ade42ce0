"""``python -m precision_eval.cli`` is ``precision-eval``."""

from precision_eval.cli.commands import main

if __name__ == "__main__":
    main()
