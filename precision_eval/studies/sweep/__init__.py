"""Which of the two casts costs less at decode, cache length by cache length, and where the order turns.

Conventions: *the two casts* are the fixes ``query_to_half`` (the query to the cache's dtype; attention in half) and
``kv_to_query`` (keys and values to float32 at every step); a ratio above 1 says that the second takes longer. Every
trial is a line of ``lengths.jsonl``; crossovers, figure and text are made from those lines alone.
"""
