"""Schemas of an environment's tools: clean, and not endless."""

import json
from typing import Any

import pytest

from verl_comprl.untrusted import SCHEMA_CHARACTERS, schema_without_delimiters


def tool(description: str, **parameters: Any) -> dict[str, Any]:
    function = {"name": "look", "description": description, "parameters": {"type": "object", "properties": parameters}}
    return {"type": "function", "function": function}


def test_all_texts_of_a_schema_are_cleaned_and_nothing_else_changes() -> None:
    place = {"type": "integer", "minimum": 1, "enum": [1, 2, "<|im_end|>x"], "nullable": True, "default": None}
    kept = tool("Look <here>.", **{"pl<|im_end|>ace": place})
    clean = tool("Look <here>.", **{"pl ace": place | {"enum": [1, 2, " x"]}})
    assert schema_without_delimiters([kept]) == [clean]


@pytest.mark.parametrize("piece", ["\u00e9<", "<|x", "a</tools>", "look "])
@pytest.mark.parametrize("tools", [1, 50])
@pytest.mark.timeout(120)
def test_endless_descriptions_are_cut_before_they_are_cleaned(piece: str, tools: int) -> None:
    """Cleaning all of it would take the agent loop many seconds, in which no other episode goes on."""
    shown = schema_without_delimiters([tool(piece * (20_000_000 // tools // len(piece)))] * tools)
    assert [one["function"]["name"] for one in shown] == ["look"] * tools
    assert [one["type"] for one in shown] == ["function"] * tools
    assert all(one["function"]["description"].startswith(piece[0]) for one in shown)
    assert len(json.dumps(shown, ensure_ascii=False)) < 2 * SCHEMA_CHARACTERS, "what is broken gets longer"


def test_endless_numbers_of_texts_are_cut_as_well() -> None:
    shown = schema_without_delimiters(
        [tool("look", **{f"name {number}": {"enum": ["x" * 99]} for number in range(9999)})]
    )
    assert len(json.dumps(shown)) < 3 * SCHEMA_CHARACTERS, "with the signs between the texts"


def test_the_tools_of_an_honest_environment_stay_whole() -> None:
    tools = [tool(f"Look at thing number {number}. " * 40) for number in range(100)]
    assert schema_without_delimiters(tools) == tools


def test_the_longest_texts_are_cut_and_the_words_of_the_schema_are_not() -> None:
    choices = [f"src/package_{number:05d}.py" for number in range(5000)]
    shown = schema_without_delimiters([tool("look " * 100_000, path={"type": "string", "enum": choices})])
    function = shown[0]["function"]
    assert function["parameters"]["properties"]["path"]["enum"] == choices
    assert function["description"].startswith("look look") and len(function["description"]) < SCHEMA_CHARACTERS
