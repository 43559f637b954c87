"""How long a kernel takes: the TPU compiler's own schedule, read and run without a TPU."""
