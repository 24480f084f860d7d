"""The experience extractor: its prompts, its calls and the buffer it is trained from. Knows neither verl nor Ray."""
