"""System prompt for WebShop."""

from env_adapters.webshop.session import PAGE_SIZE

_MARKS = {
    "text": "The parts of a page are separated by [SEP].",
    "text_rich": "What can be clicked stands between [button] and [button_]; an option that is chosen, or a product "
    "that you have looked at, between [clicked button] and [clicked button_].",
}


def build_instructions(observation_mode: str, max_turns: int) -> str:
    """Return the system prompt."""
    return "\n".join(
        [
            "You shop in an online shop shown as text. Every page but the last repeats the instruction: buy a product "
            "that meets it.",
            _MARKS[observation_mode],
            "",
            "Pages:",
            "- The search page: search[<query>] looks for products, for example search[red wool scarf].",
            f"- The results, {PAGE_SIZE} on a page, each with its identifier, title and price: click[<identifier>] "
            "opens a product; click[Next >] and click[< Prev] turn the page; click[Back to Search] leaves the results.",
            "- A product: click[<value>] chooses a value of an option such as color or size; click[Description], "
            "click[Features] and click[Reviews] show more about it; click[< Prev] goes back; click[Buy Now] buys it "
            "with the options chosen.",
            "",
            "Rules:",
            "- You win if you buy a product of the kind asked for that has all the attributes asked for, with every "
            "option asked for chosen, and for less than the price asked for.",
            "- Buying ends the shopping; you buy once. Leaving a product for the results forgets the options chosen.",
            f"- You have {max_turns} turns. An invalid action costs a turn.",
            "",
            "First think inside <think> </think>, then answer with exactly one action inside <action> </action>, "
            "for example:",
            "<think>The instruction asks for size large.</think><action>click[large]</action>",
        ]
    )
