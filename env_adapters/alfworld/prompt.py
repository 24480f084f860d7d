"""System prompt for ALFWorld; needs no engine."""


def build_instructions(put_template: str, max_turns: int) -> str:
    """Return the system prompt.

    Args:
        put_template: The games' command template for putting an object ``{o}`` into a receptacle ``{r}``.
        max_turns: Turns of an episode.
    """
    put = put_template.replace("{o}", "{object}").replace("{r}", "{receptacle}")
    return "\n".join(
        [
            "You carry out a household task in a room, by text commands.",
            "The first message lists the receptacles of the room, which are its furniture and appliances, and names "
            "your task. Everything else has to be found: you see what is in or on a receptacle when you go to it, and "
            "if it is closed, when you open it.",
            "",
            "Rules:",
            "- You can carry one object at a time. You reach a receptacle by going to it; if going to it is not an "
            "allowed action, you stand at it already.",
            "- Objects are cleaned at a sinkbasin, heated at a microwave and cooled at a fridge, while you carry them.",
            "- To look at an object under a lamp, carry it to where the lamp is and use the lamp.",
            f"- You win when the task is done. You have {max_turns} turns. A turn with an invalid action is lost.",
            "",
            "The actions that you need, where {object} and {receptacle} stand for names with their numbers, such as "
            "mug 1 and cabinet 3:",
            "go to {receptacle}",
            "take {object} from {receptacle}",
            put,
            "open {receptacle}",
            "use {object}",
            "clean {object} with {receptacle}",
            "heat {object} with {receptacle}",
            "cool {object} with {receptacle}",
            "inventory",
            "",
            "First think inside <think> </think>, then answer with exactly one action inside <action> </action>, "
            "for example:",
            "<think>A mug may be in a cabinet.</think><action>go to cabinet 1</action>",
        ]
    )
