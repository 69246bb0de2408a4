"""Swaplane: one GPU, many jobs, who goes next."""

__version__ = "0.1.0"
