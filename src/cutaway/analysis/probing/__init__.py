"""Linear probes: what can be read off a value by a linear map."""
