"""Removes from texts of models, environments and other people what could control a terminal."""


def printable(text: str) -> str:
    """Return ``text`` with a space in place of every unprintable character except line breaks and tabs."""
    return "".join(char if char.isprintable() or char in "\n\t" else " " for char in text)
