"""Chat messages that an actor reads, for rollouts and for supervised data that warm-starts a model.

Owns pure functions that need neither verl nor the experience bank, so that a supervised dataset built with them has
exactly the format of training.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from verl_comprl.untrusted import without_delimiters

Message = dict[str, Any]

EXPERIENCE_BLOCK = """Experience from earlier episodes (use it where it fits):
<experience>
{experience}
</experience>"""

OBSERVATION_BLOCK = """Observation:
{observation}"""


def initial_messages(
    prompt: Sequence[Mapping[str, Any]], observation: str, experience: str | None = None, *, tokenizer: Any = None
) -> list[Message]:
    """Return the messages an episode starts with.

    Args:
        prompt: The dataset row's messages: the rules (system), then the task description (user).
        observation: The text of the environment's reset.
        experience: The retrieved entry's text for a guided rollout, ``None`` for a free one.
        tokenizer: That of the model that reads them, whose own control tokens are removed, too.

    Returns:
        New messages; the last one holds task, experience (if any) and first observation. ``prompt`` is not changed.

    Raises:
        ValueError: If ``prompt`` is empty or does not end with a user message.
    """
    if not prompt or prompt[-1]["role"] != "user":
        roles = [message["role"] for message in prompt]
        raise ValueError(f"a dataset prompt must end with a user message that states the task; its roles are {roles}")
    parts = [without_delimiters(str(prompt[-1]["content"]), tokenizer)]
    if experience is not None:
        parts.append(EXPERIENCE_BLOCK.format(experience=without_delimiters(experience, tokenizer)))
    parts.append(OBSERVATION_BLOCK.format(observation=without_delimiters(observation, tokenizer)))
    return [dict(message) for message in prompt[:-1]] + [{"role": "user", "content": "\n\n".join(parts)}]


def observation_message(observation: str, *, tokenizer: Any = None) -> Message:
    """Return the message that carries the environment's answer to an action.

    Args:
        observation: The text of the environment's step.
        tokenizer: As in :func:`initial_messages`.
    """
    text = without_delimiters(observation, tokenizer)
    return {"role": "user", "content": OBSERVATION_BLOCK.format(observation=text)}
