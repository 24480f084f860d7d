"""Statuses by which an HTTP server says that it takes no requests now."""

BUSY = frozenset({408, 429, 502, 503, 504})
"""Whatever was asked of the server is not at fault."""
