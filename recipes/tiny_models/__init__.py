"""Small models for runs without a GPU: tokenizer, architecture, supervised warm start, cached on disk."""
