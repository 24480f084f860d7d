"""Exceptions of embedders."""


class EmbedderUnavailable(ConnectionError):
    """The embedder's endpoint cannot be reached, or takes no requests now: the texts are not at fault."""
