"""rpagen: specs in, specialised ragged paged attention kernels for TPUs out."""

__version__ = "0.1.0"
