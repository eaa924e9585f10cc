"""Read hidden states as words: logit lens, tuned lens, nearest tokens."""
