"""WebShop's search: words, stems and ranking."""

import logging
import math
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from env_adapters.webshop.search import HITS, SearchIndex
from env_adapters.webshop.stemmer import stem
from env_adapters.webshop.words import content_words, split_words


# The examples of Porter's paper.
@pytest.mark.parametrize(
    ("words", "stems"),
    [
        ("caresses ponies caress cats", "caress poni caress cat"),
        ("feed agreed plastered bled motoring sing", "feed agre plaster bled motor sing"),
        ("conflated troubled sized hopping falling hissing fizzed failing filing", None),
        ("happy sky", "happi sky"),
        ("relational conditional rational digitizer radically differently vilely", None),
        ("operator feudalism decisiveness hopefulness callousness sensibility", None),
        ("triplicate formative formalize electrical hopeful goodness", "triplic form formal electr hope good"),
        ("revival allowance inference airliner adjustable defensible irritant replacement adjustment", None),
        ("dependent adoption communism activate effective bowdlerize", "depend adopt commun activ effect bowdler"),
        ("probate rate cease controlling roll", "probat rate ceas control roll"),
        ("a is be s", "a is be s"),
    ],
)
def test_stems_are_those_of_the_paper(words: str, stems: str | None) -> None:
    known = {
        "conflated": "conflat troubl size hop fall hiss fizz fail file",
        "relational": "relat condit ration digit radic differ vile",
        "operator": "oper feudal decis hope callous sensibl",
        "revival": "reviv allow infer airlin adjust defens irrit replac adjust",
    }
    assert " ".join(map(stem, words.split())) == (stems or known[words.split()[0]])


def test_words_are_lower_case_without_stop_words_and_possessives() -> None:
    assert split_words("The Women's 3.1-inch Café, and don't!") == ["women", "3.1", "inch", "café", "don't"]
    assert content_words("Pack of 12 USB-C cables, USB 4K") == ("pack", "usb", "c", "cables", "usb", "4k")


def bm25(texts: list[Counter[str]], query: str) -> list[float]:
    """Return the scores by the formula, with k1 0.9 and b 0.4."""
    mean = sum(text.total() for text in texts) / len(texts)
    scores = [0.0] * len(texts)
    for word in map(stem, split_words(query)):
        having = sum(word in text for text in texts)
        rarity = math.log(1 + (len(texts) - having + 0.5) / (having + 0.5))
        for number, text in enumerate(texts):
            often = text[word]
            scores[number] += rarity * often / (often + 0.9 * (0.6 + 0.4 * text.total() / mean))
    return scores


def test_the_ranking_follows_the_formula() -> None:
    chosen = random.Random(0)
    words = [f"word{number}" for number in range(60)]
    documents = [" ".join(chosen.choices(words, k=chosen.randrange(1, 40))) for _ in range(200)]
    texts = [Counter(map(stem, split_words(document))) for document in documents]
    index = SearchIndex(documents)
    for _ in range(50):
        query = " ".join(chosen.choices([*words, "unknown"], k=chosen.randrange(1, 6)))
        scores = bm25(texts, query)
        best = sorted((score for score in scores if score > 0), reverse=True)[:HITS]
        found = index.search(query)
        assert len(set(found)) == len(found)
        assert [scores[number] for number in found] == pytest.approx(best, abs=1e-5)


def test_equal_scores_are_in_document_order_and_results_are_limited_to_fifty() -> None:
    index = SearchIndex(["red scarf"] * 80 + ["blue scarves"])
    assert index.search("RED") == list(range(50))
    assert index.search("scarves blue")[0] == 80
    assert SearchIndex(["red scarf", "blue hat"]).search("hats") == [1]


@pytest.mark.parametrize("query", ["", " ", "the of", "zzz", "\x00\x1b", "\udcff", "[]", "." * 1_000_000])
def test_a_query_without_a_known_word_finds_nothing(query: str) -> None:
    assert SearchIndex(["red scarf", "blue hat"]).search(query) == []


def test_a_query_is_cut_after_a_thousand_characters() -> None:
    index = SearchIndex(["red scarf", "blue hat"])
    assert index.search("x " * 498 + "red") == [0] and index.search("x " * 500 + "red") == []


@given(st.text())
def test_any_query_is_answered(query: str) -> None:
    assert set(SearchIndex(["red scarf", "blue hat 1"]).search(query)) <= {0, 1}


def test_the_library_s_debug_lines_are_not_shown(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)  # of the root, which does not hold back what a logger below asks for
    caplog.handler.setLevel(logging.NOTSET)
    SearchIndex(["a red shoe", "a blue hat"])
    assert not [record for record in caplog.records if record.name == "bm25s"]
