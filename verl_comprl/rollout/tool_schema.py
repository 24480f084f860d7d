"""Schema of ``search_and_ask`` as a model reads it; imports nothing, so that warm-start data can use it."""

SEARCH_AND_ASK_SCHEMA = {
    "type": "function",
    "function": {
        "name": "search_and_ask",
        "description": (
            "Ask for advice from experience of earlier episodes. Describe your current state and what you find "
            "difficult; the answer comes back as a message. It does not use up a turn of the task."
        ),
        "parameters": {
            "type": "object",
            "properties": {
                "query": {"type": "string", "description": "Your state and your difficulty, in one or two sentences."}
            },
            "required": ["query"],
        },
    },
}
"""OpenAI function schema."""
