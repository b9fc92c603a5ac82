"""The uses of a finished run: saved models, predictions, forgetting."""
