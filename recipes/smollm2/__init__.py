"""A real instruct model, SmolLM2-135M-Instruct, as actor and extractor on two CPU cores."""
