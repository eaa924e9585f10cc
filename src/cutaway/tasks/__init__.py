"""The jobs of the command line, one a file: plain arguments in, plain results out, nothing printed."""
