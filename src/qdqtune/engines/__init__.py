"""What builds and times a model, each in a process of its own."""
