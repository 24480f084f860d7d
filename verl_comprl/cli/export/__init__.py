"""Command ``comprl export``: a checkpoint's models in Hugging Face format with model cards, and its bank."""
