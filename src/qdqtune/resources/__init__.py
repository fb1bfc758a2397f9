"""What this process and its children may take of the machine, and when they end."""
