"""What records say: groups, ties, choice, regression."""
