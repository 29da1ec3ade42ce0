"""The experiment: a plan of cells, run by isolated workers, into records."""
