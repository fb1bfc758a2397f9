"""Frozen values that cross rooms."""
