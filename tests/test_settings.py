"""The words for what a setting may be."""

from typing import Annotated, Literal

import pytest
from pydantic import Field, NonPositiveFloat, PositiveInt

from verl_comprl.settings import Settings, Share, allowed, interpolated, yaml_default


class Example(Settings):
    count: PositiveInt = 3
    share: Share = 0.5
    limit: PositiveInt | None = None
    mode: Literal["a", "b"] = "a"
    flag: bool = True
    name: str | None = None
    folder: str = interpolated("here", "${somewhere}/else", min_length=1)
    many: Annotated[int, Field(ge=2)] = 2
    penalty: NonPositiveFloat = -1.0


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("count", "a whole number greater than 0"),
        ("share", "a number of at least 0 and at most 1"),
        ("limit", "null or a whole number greater than 0"),
        ("mode", "one of a, b"),
        ("flag", "true or false"),
        ("name", "null or text"),
        ("folder", "text that is not empty"),
        ("many", "a whole number of at least 2"),
        ("penalty", "a number of at most 0"),
    ],
)
def test_allowed(name: str, words: str) -> None:
    assert allowed(Example.model_fields[name]) == words


def test_the_default_in_a_run_may_be_an_expression() -> None:
    assert yaml_default(Example.model_fields["folder"]) == "${somewhere}/else" and Example().folder == "here"
    assert yaml_default(Example.model_fields["share"]) == 0.5
