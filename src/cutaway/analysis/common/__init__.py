"""What all analyses share: prompts, token selections, metrics, results, statistics, sweeps."""
