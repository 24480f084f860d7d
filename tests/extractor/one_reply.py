"""A back end of the extractor's calls that always gives one reply."""


class Script:
    """Gives the same reply to every prompt and keeps the prompts."""

    def __init__(self, reply: str) -> None:
        self.reply = reply
        self.prompts: list[str] = []

    async def __call__(self, prompt: str) -> str:
        self.prompts.append(prompt)
        return self.reply
