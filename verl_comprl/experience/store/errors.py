"""Exceptions of stores."""


class StoreError(RuntimeError):
    """The store failed or refused; the exception of the engine or client, if any, is the cause."""


class LeaseLost(StoreError):
    """Another process has become the writer of the bank; this one can write nothing any more."""


class StoreUnavailable(StoreError):
    """The store cannot be reached, or takes no requests now, as with a full disk: what was asked is not at fault."""


class StoreVanished(StoreUnavailable):
    """The server is there and the bank is not, as after a start without its storage."""
