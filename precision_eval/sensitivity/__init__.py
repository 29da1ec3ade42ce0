"""Which layers and roles carry a model's drift, and a mixed policy made of that.

The map: each site (layer × role) is dropped to a format alone, and held in float32 alone, on the same inputs, and the
drift to the float64 oracle is ranked, with intervals. The policy: searched along the map on one half of the inputs,
really executed, and held against every uniform fix on the other half, drift and paired latency.

- :mod:`.sites`, :mod:`.targets`: what a site is, and the models that are mapped; load no torch.
- :mod:`.tape`, :mod:`.recorder`, :mod:`.attention`, :mod:`.replay`: a call as a list of operations, and running it
  again with chosen results rounded.
- :mod:`.mapping`, :mod:`.ranking`: the runs of a map, and the ranked table.
- :mod:`.policy`, :mod:`.executed`, :mod:`.search`, :mod:`.contest`: mixed policies.
- :mod:`.campaign`, :mod:`.text`, :mod:`.plots`: all of it over several targets, and what it looks like.
"""
