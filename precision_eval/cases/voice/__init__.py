"""A small trained voice: model, codec, synthesis, and a recogniser that hears it."""
