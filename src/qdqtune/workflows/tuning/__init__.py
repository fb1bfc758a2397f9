"""The parts of a tuning run."""
