"""acme: what a downstream package can add to rlxpy, one module a seam."""
