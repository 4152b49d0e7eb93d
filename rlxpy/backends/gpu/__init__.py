"""GPUs: what a machine needs for them, and kernels that downstream packages write for them."""
