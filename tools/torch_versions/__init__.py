"""One environment per torch version, asv in each, and asv's page over the versions."""
