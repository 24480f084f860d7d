"""What an episode asks for."""

from dataclasses import dataclass

from env_adapters.webshop.product import Product


@dataclass(frozen=True, slots=True)
class Goal:
    """A task of the shop.

    Attributes:
        task_id: Its name.
        instruction: What the model is told.
        product: The product it was made from; others may do as well.
        attributes: What the product shall have, at least one.
        options: Name and value of the options to choose; the name is None where upstream's file does not say it.
        price_upper: The price not to exceed.
    """

    task_id: str
    instruction: str
    product: Product
    attributes: tuple[str, ...]
    options: tuple[tuple[str | None, str], ...]
    price_upper: float
