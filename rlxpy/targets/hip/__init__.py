"""The HIP target: kernels and the calls that run them, as a project of files."""
