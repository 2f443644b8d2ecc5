"""Measurements: the ceiling probe, the product scenarios, and the count of Python calls per message."""
