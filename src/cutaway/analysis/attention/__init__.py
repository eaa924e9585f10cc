"""Where tokens and patches look: attention maps and rollout."""
