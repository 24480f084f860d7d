"""Actor as critic (App. B.1, Eq. 8): prompt for its judgement of an entry, and how the answer is parsed.

Accepted text is used as it is, refined text in the actor's own words, rejected text not at all. An answer that cannot
be parsed, or that comes too late, leaves the entry as it is. Owns pure functions; generation is in the agent loop.
"""

import re
from typing import Any

from verl_comprl.experience.updates.sanitize import sanitize
from verl_comprl.manager.messages import MAX_CHARS, Judgement
from verl_comprl.rollout.messages import EXPERIENCE_BLOCK, OBSERVATION_BLOCK, Message
from verl_comprl.untrusted import without_delimiters

INSTRUCTIONS = """You are about to work on a task and have been given experience from earlier episodes. Judge it \
before you begin. Reason briefly, then answer with one of:
<verdict>accept</verdict> if it fits this task as it is.
<verdict>refine</verdict> followed by <experience>your better version</experience> if only part of it fits.
<verdict>reject</verdict> if it does not fit or would mislead you."""

_VERDICT = re.compile(r"<verdict>\s*(accept|refine|reject)\s*</verdict>", re.IGNORECASE)
_BEGIN, _END = "<experience>", "</experience>"
"""Around a refined text. Not a regular expression: one would take quadratic time for begins without an end."""


def judging_messages(goal: str, observation: str, experience: str, *, tokenizer: Any = None) -> list[Message]:
    """Return the prompt that asks for a verdict on ``experience``, with goal and first observation.

    Args:
        goal: The task description.
        observation: The text of the environment's reset.
        experience: The entry's text.
        tokenizer: That of the actor, whose own control tokens are removed, too.
    """
    goal, observation, experience = (without_delimiters(text, tokenizer) for text in (goal, observation, experience))
    parts = [goal, OBSERVATION_BLOCK.format(observation=observation), EXPERIENCE_BLOCK.format(experience=experience)]
    return [{"role": "system", "content": INSTRUCTIONS}, {"role": "user", "content": "\n\n".join(parts)}]


def read_judgement(answer: str, experience: str, record_id: str | None) -> tuple[Judgement, str | None]:
    """Parse a verdict, and return it with the text that the actor will get.

    Args:
        answer: What the critic wrote; its last verdict counts.
        experience: The text that it judged.
        record_id: Generation record of the text.

    Returns:
        The judgement, and ``experience``, the refined text, or ``None`` if it was rejected.
    """
    found = list(_VERDICT.finditer(answer))
    verdict = found[-1][1].lower() if found else "unreadable"
    if verdict == "reject":
        return Judgement(verdict, record_id), None
    if verdict == "refine":
        refined, end, _ = answer[found[-1].end() :].partition(_BEGIN)[2].partition(_END)
        if text := sanitize(refined, MAX_CHARS) if end else "":
            return Judgement(verdict, record_id), text
        verdict = "unreadable"
    return Judgement(verdict, record_id), experience
