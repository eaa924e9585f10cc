"""Find directions and add them to a value while the model answers."""
