"""Retrieval of one entry for a query: micro-batches, cache of query vectors, similarity search, ranking (Eq. 6)."""
