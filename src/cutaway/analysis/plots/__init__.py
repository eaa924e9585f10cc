"""Draw results with matplotlib."""
