"""Real inputs for trained models, made from what wheels and the standard library carry."""
