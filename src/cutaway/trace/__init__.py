"""Reading and editing named values of any named module while it runs."""
