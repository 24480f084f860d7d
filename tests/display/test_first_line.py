"""The first line of an error's text."""

import pytest

from verl_comprl.display.first_line import first_line


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("no server\nis there"), "no server"),
        (ValueError("\n  no server  \n"), "no server"),
        (TimeoutError(), "TimeoutError()"),
        (ValueError("\n"), "ValueError('\\n')"),
    ],
)
def test_an_error_has_one_line(error: Exception, line: str) -> None:
    assert first_line(error) == line
