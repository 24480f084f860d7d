"""Content of WebShop's pages in both observation modes."""

from env_adapters.webshop.pages import Part, item_page, list_actions, render, results_page, search_page, sub_page
from env_adapters.webshop.product import read_product

RECORD = {
    "asin": "A1",
    "name": "Fern Scarf",
    "query": "scarves",
    "product_category": "a",
    "full_description": "Warm.",
    "small_description": ["Soft", "Long"],
    "customization_options": {
        "Size": [{"value": "S"}, {"value": "M"}],
        "Color": [{"value": "Red"}, {"value": 'A "B"'}],
    },
    "pricing": "$8.00 - $9.50",
}
REVIEWS = {"average_rating": 4.5, "reviews": [{"title": "Nice", "stars": 5.0, "review": "Warm."}]}
PRODUCT = read_product(RECORD, ["warm"], REVIEWS)


def test_the_search_page() -> None:
    page = search_page("Find me scarves")
    assert render(page, "text") == "WebShop [SEP] Instruction: [SEP] Find me scarves [SEP] Search"
    assert render(page, "text_rich") == "WebShop\nInstruction: \nFind me scarves\n[button] Search [button_]"
    assert list_actions(page) == ["search[<query>]"]


def test_the_results() -> None:
    page = results_page("Find me scarves", [PRODUCT], 2, 11, {"A1"})
    assert render(page, "text") == (
        "Instruction: [SEP] Find me scarves [SEP] Back to Search [SEP] Page 2 (Total results: 11) [SEP] < Prev [SEP] "
        "Next > [SEP] A1 [SEP] Fern Scarf [SEP] $8.0 to $9.5"
    )
    assert render(page, "text_rich") == (
        "Instruction:\nFind me scarves\n[button] Back to Search [button_]\nPage 2 (Total results: 11)\n"
        "[button] < Prev [button_]\n[button] Next > [button_]\n\n[clicked button] A1 [clicked button_]\nFern Scarf\n"
        "$8.0 to $9.5"
    )
    assert list_actions(page) == ["click[back to search]", "click[< prev]", "click[next >]", "click[a1]"]
    first = results_page("Find me scarves", [PRODUCT], 1, 11, set())
    assert "\n[button] A1 [button_]\n" in render(first, "text_rich")
    assert "click[< prev]" not in list_actions(first)


def test_an_item_with_chosen_options() -> None:
    page = item_page("Find me scarves", PRODUCT, {"color": 'a "b"', "size": "m"})
    assert render(page, "text") == (
        "Instruction: [SEP] Find me scarves [SEP] Back to Search [SEP] < Prev [SEP] size [SEP] s [SEP] m [SEP] color "
        '[SEP] red [SEP] a "b" [SEP] Fern Scarf [SEP] Price: $8.0 to $9.5 [SEP] Rating: 4.5 [SEP] Description [SEP] '
        "Features [SEP] Reviews [SEP] Buy Now"
    )
    assert render(page, "text_rich").splitlines() == [
        'You have clicked a "b".',
        "You have clicked m.",
        "Instruction:",
        "Find me scarves",
        "[button] Back to Search [button_]",
        "[button] < Prev [button_]",
        "size",
        "  [button] s [button_]",
        "  [clicked button] m [clicked button_]",
        "color",
        "  [button] red [button_]",
        '  [clicked button] a "b" [clicked button_]',
        "Fern Scarf",
        "Price: $8.0 to $9.5",
        "Rating: 4.5",
        "[button] Description [button_]",
        "[button] Features [button_]",
        "[button] Reviews [button_]",
        "[button] Buy Now [button_]",
    ]
    texts = ["back to search", "< prev", "description", "features", "reviews", "buy now", "s", "m", "red", 'a "b"']
    assert list_actions(page) == [f"click[{text}]" for text in texts]


def test_the_pages_below_an_item() -> None:
    def content(name: str) -> list[str]:
        page = sub_page("Find me scarves", PRODUCT, name)
        assert list_actions(page) == ["click[back to search]", "click[< prev]"]
        return render(page, "text").split(" [SEP] ")[4:]

    assert content("Description") == ["Warm."]
    assert content("Features") == ["Soft", "Long"]
    assert content("Reviews") == ['"Nice"', "5.0", "Warm."]


def test_empty_texts_are_skipped_and_actions_are_listed_once() -> None:
    assert render([Part("a"), Part(""), Part("b")], "text") == "a [SEP] b"
    assert render([Part("a"), Part(""), Part("b")], "text_rich") == "a\nb"
    page = [Part("Reviews", "button"), Part("reviews", "option"), Part("one", "option"), Part("one", "option")]
    assert list_actions(page) == ["click[reviews]", "click[one]"]
