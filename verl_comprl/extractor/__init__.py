"""The extractor, the model that writes experience: prompts, calls, queue and training buffer, without verl or Ray."""
