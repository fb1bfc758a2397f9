"""What people look at, made from records and nothing else."""
