"""What really runs: the one observer of operations, and what is read from it. Nothing here runs while timing."""
