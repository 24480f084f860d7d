"""The words for what a setting may be."""

from typing import Annotated, Literal

import pytest
from pydantic import Field, NonPositiveFloat, PositiveInt, ValidationError

from verl_comprl.experience.config import BankConfig, EmbedderConfig
from verl_comprl.extractor.config import EndpointConfig
from verl_comprl.settings import Settings, Share, allowed, interpolated, mistakes, yaml_default


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


@pytest.mark.parametrize("settings", [BankConfig, EmbedderConfig, EndpointConfig])
def test_an_address_with_a_password_is_refused_and_not_repeated(settings: type[Settings]) -> None:
    """A run's config and its messages are written into its folder."""
    for url in ("https://me:canary-0123@host:6333", "http://canary-0123@[::1]/v1"):
        with pytest.raises(ValidationError) as refused:
            settings.model_validate({"url": url})
        (line,) = mistakes(refused.value, settings, "group")
        assert "group.url='http" in line and "must not hold a user or a password" in line and "canary" not in line
    for url in (
        "host?key=canary-0123",
        "me:canary-0123@host:6333",
        "http:/h#canary",
        "canary@host",
    ):
        with pytest.raises(ValidationError) as refused:
            settings.model_validate({"url": url})
        assert "must start with" in (line := mistakes(refused.value, settings, "group")[0]) and "canary" not in line
    for url in ("https://host/v1?api_key=canary-0123", "https://host?canary-'\"?", "https://host/#canary"):
        with pytest.raises(ValidationError) as refused:
            settings.model_validate({"url": url})
        (line,) = mistakes(refused.value, settings, "group")
        assert "group.url='https://host" in line and "must not hold a query" in line and "canary" not in line
    for url in ("http://host:6333/a@b", ""):
        assert vars(settings.model_validate({"url": url, "path": "bank"} if settings is BankConfig else {"url": url}))
