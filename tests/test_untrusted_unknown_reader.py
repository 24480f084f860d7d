"""Untrusted text for a model whose tokenizer is not known: what may be a token gets a space, and can still be read."""

import re
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from verl_comprl.untrusted import folded, without_control_tokens, without_delimiters


@pytest.fixture(scope="module")
def own() -> Any:
    """A tokenizer that has none of these tokens."""
    return AutoTokenizer.from_pretrained(Path(__file__).parents[1] / "recipes/miniature/models/full/actor")


@pytest.mark.parametrize(
    "tag",
    [
        "<tool_call>",
        "</tool_call>",
        "<think>",
        "</think>",
        "<longcat_user>",
        "<_observation>",
        "<role>",
        "</role>",
        "<start_function_call>",
        "<END_OF_UTTERANCE>",
        "<\u200btool_call>",
        "\uff1ctool_call>",
        "<tool\x01_call>",
        "<filename>",
        "<TOOLCALL>",
        "</TOOLCALL>",
        "<\u7528\u6237>",
        "\u2039\u7528\u6237>",
        "<end>",
        "<eom>",
        "<eoc>",
        "<eor>",
        "<escape>",
        "\u25c1think\u25b7",
        "\u25c1/think\u25b7",
    ],
)
def test_a_reader_that_is_not_known_gets_no_tag_that_may_be_a_token(tag: str, own: Any) -> None:
    """One that is known has said which tags are tokens; to any other a name in brackets may be one."""
    shown = without_delimiters(f"a{tag}\nb")
    assert re.fullmatch(r"a< ?/?\w+>\nb", seen := folded(shown)) and "< " in seen
    assert without_delimiters(f"a{tag}b", own) == f"a{tag}b"


@pytest.mark.parametrize(
    "token",
    [
        "[ARGS]",
        "[PREFIX]",
        "[MIDDLE]",
        "[SUFFIX]",
        "[USER]",
        "[BOT]",
        "[BOS]",
        "[EOS]",
        "[EOT]",
        "[start_header_id]",
        "[\uff35SER]",
        ">>QUESTION<<",
        ">>IP_ADDRESS<<",
        ">>UNUSED_7<<",
        "|ENDOFTEXT|",
    ],
)
def test_nor_a_token_that_honest_texts_have_as_well(token: str, own: Any) -> None:
    shown = without_delimiters(f"a{token}b")
    assert token not in shown and shown.replace(" ", "") == f"a{token}b", "it can still be read"
    assert without_delimiters(f"a{token}b", own) == f"a{token}b"


def test_html_and_code_without_such_names_stay_for_a_reader_that_is_not_known() -> None:
    text = "x[args] = arr[user]; cat >>config<<EOF; std::cin>>name<<1"
    assert without_delimiters(text) == text
    text = "std::vector<int> x; Map<Key, int> <div class='a_b'> <br/> 1 < 2_000 > a <a_b c>"
    assert without_delimiters(text) == text
    text = "missing '}' at <EOF>; <TABLE><endpoint> <toolbox> |NAME|AGE| [|x|] [|xs|] \u25c1 back \u25b7 <\u6587\u4ef6>"
    assert without_delimiters(text) == text


@pytest.mark.parametrize("token", ["\u25c1think\u25b7", "\u25c1/think\u25b7"])
def test_a_token_in_triangles_is_removed_for_a_tokenizer_that_has_it(token: str, own: Any) -> None:
    tokenizer = deepcopy(own)
    tokenizer.add_tokens([token])
    assert without_control_tokens(f"a{token}b \u25b7", tokenizer) == "a b \u25b7"
