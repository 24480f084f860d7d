"""Shortening of long texts for the model."""


def cut(text: str, limit: int) -> str:
    """Return the text, or only its beginning and end if it has more than ``limit`` characters."""
    if len(text) <= limit:
        return text
    head = limit // 2
    return f"{text[:head]}\n[... {len(text) - limit} characters left out ...]\n{text[len(text) - (limit - head) :]}"
