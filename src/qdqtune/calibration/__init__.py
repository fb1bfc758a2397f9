"""Tensor ranges from data, streamed."""
