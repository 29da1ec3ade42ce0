"""Memory of a model before it is run: weights, caches and what a call holds at once, per fix."""
