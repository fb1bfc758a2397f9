"""What a user asks for, whole."""
