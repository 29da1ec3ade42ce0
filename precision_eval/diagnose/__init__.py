"""The doctor, for a model; explain, for a message."""
