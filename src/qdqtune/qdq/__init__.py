"""Dialects, encodings, and writing, reading back and stripping Q/DQ."""
