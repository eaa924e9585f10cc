"""Published files: where they are, what their config says, how their weights get into a module tree."""
