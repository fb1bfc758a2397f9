"""Frozen values that cross layers."""
