"""Model processes: starting them, knowing when they are ready, ending them whole."""
