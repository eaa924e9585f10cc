"""Join prompts into one batch, with positions for every token."""
