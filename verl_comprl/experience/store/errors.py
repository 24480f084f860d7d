"""The one exception of stores."""


class StoreError(RuntimeError):
    """The store failed or refused; the exception of the engine or client, if any, is the cause."""
