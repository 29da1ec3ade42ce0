"""Which of the two casts costs less at decode, cache length by cache length, and where the order turns.

Conventions: *the two casts* are the fixes ``query_to_half`` (the query to the cache's dtype; attention in half) and
``kv_to_query`` (keys and values to float32 at every step); a ratio above 1 says that the second takes longer. Every
trial is a line of ``lengths.jsonl``; crossovers, figure and text are made from those lines alone.

Contents
--------
:mod:`.plan`
    What is swept: configurations, lengths, jobs; plain data, loads no torch.
:mod:`.memory`
    States of the C library's allocator, and page faults per call.
:mod:`.measuring`
    One job in a worker of its own; loads torch.
:mod:`.lengths`
    Runs the sweep.
:mod:`.lines`
    The lines on file, and what they say over all processes.
:mod:`.crossover`
    The length at which a ratio crosses 1, with its interval.
:mod:`.plots`, :mod:`.text`
    ``lengths.png`` and ``.svg``; ``crossover.json`` and ``summary.md``.
"""
