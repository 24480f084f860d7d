"""The messages of docs/troubleshooting.md are those of the code, so that a reader finds them by searching."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/troubleshooting.md").read_text(encoding="utf-8")
OF_OTHER_LIBRARIES = ("unrecognized arguments:", "ConnectError:")
MESSAGES = [
    message
    for row in PAGE.splitlines()
    if row.startswith("| `")
    for message in re.findall(r"`([^`]+)`", row.split(" | ")[0])
    if not message.startswith(OF_OTHER_LIBRARIES)
]


def texts(tree: ast.AST) -> Iterator[str]:
    """Yield the string literals; in a formatted one, values are a private character."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "\ue000" for part in node.values)


def holds(text: str, parts: list[str]) -> bool:
    """Return whether the parts are in the text, in this order."""
    end = 0
    for part in parts:
        start = text.find(part, end)
        if start < 0:
            return False
        end = start + len(part)
    return True


@pytest.fixture(scope="module")
def literals() -> list[str]:
    files = [file for package in ("verl_comprl", "env_adapters") for file in (ROOT / package).rglob("*.py")]
    return [text for file in files for text in texts(ast.parse(file.read_text(encoding="utf-8")))]


@pytest.mark.parametrize("message", MESSAGES)
def test_a_message_is_in_the_code(message: str, literals: list[str]) -> None:
    assert any(holds(text, message.split("…")) for text in literals)


def test_the_page_has_messages() -> None:
    assert len(MESSAGES) > 40
