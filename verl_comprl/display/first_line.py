"""An error's first line, for a message that quotes it."""


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text; of one without a text, what it is."""
    return (str(error).strip() or repr(error)).splitlines()[0]
