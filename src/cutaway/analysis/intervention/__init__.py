"""Change a value inside a run and measure the answer: patching, ablation, knockout, pathways."""
