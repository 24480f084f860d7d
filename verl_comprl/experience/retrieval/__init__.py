"""Finding one entry for a query: similarity search, ranking (Eq. 6), micro-batches, a cache of query vectors."""
