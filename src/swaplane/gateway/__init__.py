"""The HTTP side: what clients and model servers see."""
