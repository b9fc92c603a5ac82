"""What is done with a finished run: saved models, predictions, forgetting."""
