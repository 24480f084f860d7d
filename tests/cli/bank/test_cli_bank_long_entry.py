"""``bank serve`` with an entry that is longer than the prompt of an answer, as an import keeps it."""

from mcp import Client

from verl_comprl.cli.bank.endpoint import EstimatedTokenizer
from verl_comprl.cli.bank.mcp_server import make_server
from verl_comprl.experience import Experience
from verl_comprl.extractor.calls import ExtractorCalls, Generation
from verl_comprl.extractor.prompt_encoder import Prompt


class OneEntry:
    """A bank of one entry."""

    entry = Experience(id="a", title="door", content="push " + "word " * 50_000)

    async def entries(self) -> list[Experience]:
        """Return it."""
        return [self.entry]

    async def search(self, query: str, limit: int) -> list[tuple[Experience, float]]:
        """Return it."""
        return [(self.entry, 0.9)]


async def test_a_question_is_answered_from_the_beginning_of_an_entry_that_is_too_long() -> None:
    prompts: list[str] = []

    async def generate(prompt: Prompt) -> Generation:
        prompts.append(prompt.messages[1]["content"])
        return Generation([], [], 0, text="<answer>Push it.</answer>", usage=(1, 1))

    calls = ExtractorCalls(EstimatedTokenizer(), generate, max_prompt_tokens=24_000, max_operations=3)
    async with Client(make_server(OneEntry(), calls)) as client:
        result = await client.call_tool("search_and_ask", {"query": "How does the door open?"})
    assert result.structured_content == {"answer": "Push it.", "entry_id": "a"}, result.content
    assert "door\npush word word" in prompts[0] and "How does the door open?" in prompts[0]
    assert 7_000 < len(prompts[0]) < 10_000  # as much of it as a search shows
