"""The command line, ``precision-eval``; ``precision-eval --help`` lists its commands and exit codes."""
