"""`python -m qdqtune`."""

from qdqtune.cli.main import entry_point

entry_point()
