"""The autotuner that is asked and told, region by region."""
