"""Where graphs run.  One folder or module a backend; none knows another."""
