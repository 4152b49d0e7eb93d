"""The surface for downstream packages: `from rlxpy.extend import *`."""
