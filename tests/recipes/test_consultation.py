"""A scripted question: what a run reads in it."""

import pytest

from env_adapters.parsing import extract_tool_call
from recipes.tiny_models.consultation import consultation
from verl_comprl.experience.schema import Question


@pytest.mark.parametrize(("thought", "before"), [("", ""), ("Hm.", "<think>Hm.</think>\n")])
def test_a_consultation_is_a_call_and_its_reply(thought: str, before: str) -> None:
    call, reply = consultation(Question(query='Where is "it"?', answer="Over there."), thought=thought)
    assert call["role"] == "assistant" and call["content"].startswith(f"{before}<tool_call>\n")
    assert extract_tool_call(call["content"]) == ("search_and_ask", {"query": 'Where is "it"?'})
    assert reply == {"role": "tool", "content": "Over there."}
