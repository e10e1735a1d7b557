"""What is wrong with a run: by what it recorded, and by playing with its saved agent."""
