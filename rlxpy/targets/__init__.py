"""Code generators: projects of files that need no rlxpy to run."""
