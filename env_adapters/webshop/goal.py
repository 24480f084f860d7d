"""Goal of a WebShop episode: instruction, required attributes, options and price."""

from dataclasses import dataclass

from env_adapters.webshop.product import Product


@dataclass(frozen=True, slots=True)
class Goal:
    """The goal of an episode.

    Attributes:
        task_id: Name of the task.
        instruction: The goal in words, as the model reads it.
        product: The product that the goal was made from; other products may meet it too.
        attributes: Required attributes, at least one.
        options: Required options as (name, value); the name is None if upstream's file does not give it.
        price_upper: Highest acceptable price.
        human: Whether a person has written the instruction.
    """

    task_id: str
    instruction: str
    product: Product
    attributes: tuple[str, ...]
    options: tuple[tuple[str | None, str], ...]
    price_upper: float
    human: bool = False
