"""Splitting rules for the miniature's tokenizer: words that carry meaning are tokens of their own, the rest phrases."""

from recipes.miniature.entries import WORDS

_WORD = rf" ?(?<![a-z])(?:{'|'.join(WORDS)})(?![a-z])"

PIECES = "|".join(
    [
        r"\n",
        r"</?[a-z_]+>",
        r'[]\[{}", ]*"[a-z_]+": ?["{\[]*',  # JSON key, from the end of the value before it to the start of its own
        r'[]\[{}:, ]*"[]\[{}":, ]*',  # other JSON punctuation around a quote
        r" (?:lights lamp [0-9]|does nothing)\.",
        r" ?Lamps lit: [0-9]\.",
        _WORD,
        rf'(?:(?!{_WORD})(?: [.<]|[^\n<"0-9.]))+',  # phrase
        r"[0-9]",
        r"\.",
        r".",
    ]
)
