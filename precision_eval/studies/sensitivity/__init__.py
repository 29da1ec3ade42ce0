"""Which layers and roles carry a model's drift, and a mixed policy made of that.

The map: each site (layer × role) is dropped to a format alone, and held in float32 alone, on the same inputs, and the
drift to the float64 reference is ranked, with intervals. The policy: searched along the map on one half of the inputs,
really executed, and held against every uniform fix on the other half, drift and paired latency.
"""
