"""The command line: one file per command, thin over the jobs of the package."""
