"""Porter's stemmer with its author's later changes, as used by upstream's search engine.

M. F. Porter, An algorithm for suffix stripping, Program 14(3), 1980.
"""

_STEP_2 = (
    "ational>ate tional>tion enci>ence anci>ance izer>ize bli>ble alli>al entli>ent eli>e ousli>ous ization>ize "
    "ation>ate ator>ate alism>al iveness>ive fulness>ful ousness>ous aliti>al iviti>ive biliti>ble logi>log"
)
_STEP_3 = "icate>ic ative> alize>al iciti>ic ical>ic ful> ness>"
_STEP_4 = "al> ance> ence> er> ic> able> ible> ant> ement> ment> ent> sion>s tion>t ou> ism> ate> iti> ous> ive> ize>"


def _rules(text: str) -> list[tuple[str, str]]:
    """Return pairs of ending and replacement, the longest ending first."""
    pairs = (rule.split(">") for rule in text.split())
    return sorted(((ending, new) for ending, new in pairs), key=lambda rule: -len(rule[0]))


_RULES = ((_rules(_STEP_2), 1), (_rules(_STEP_3), 1), (_rules(_STEP_4), 2))
"""Rules of each step, and how many vowel-consonant pairs must precede the ending."""


def stem(word: str) -> str:
    """Return the stem of an English word in lower case."""
    if len(word) < 3:
        return word
    word = _strip_inflection(_strip_plural(word))
    if word.endswith("y") and "v" in _shape(word[:-1]):
        word = word[:-1] + "i"
    for rules, least in _RULES:
        for ending, new in rules:
            if word.endswith(ending):
                # The s or t of sion and tion counts as part of the stem.
                if _measure(word[: len(word) - len(ending)] + (new if least == 2 else "")) >= least:
                    word = word[: len(word) - len(ending)] + new
                break
    return _tidy(word)


def _strip_plural(word: str) -> str:
    if word.endswith(("sses", "ies")):
        return word[:-2]
    return word[:-1] if word.endswith("s") and not word.endswith("ss") else word


def _strip_inflection(word: str) -> str:
    if word.endswith("eed"):
        return word[:-1] if _measure(word[:-3]) else word
    ending = next((ending for ending in ("ed", "ing") if word.endswith(ending)), "")
    root = word[: len(word) - len(ending)]
    if not ending or "v" not in _shape(root):
        return word
    if root.endswith(("at", "bl", "iz")):
        return root + "e"
    if _doubled(root) and root[-1] not in "lsz":
        return root[:-1]
    return root + "e" if _measure(root) == 1 and _short(root) else root


def _tidy(word: str) -> str:
    if word.endswith("e"):
        root = word[:-1]
        if _measure(root) > 1 or (_measure(root) == 1 and not _short(root)):
            word = root
    return word[:-1] if word.endswith("ll") and _measure(word) > 1 else word


def _shape(word: str) -> str:
    """Return v for each vowel and c for each consonant."""
    shape = ""
    for letter in word:
        shape += "v" if letter in "aeiou" or (letter == "y" and shape.endswith("c")) else "c"
    return shape


def _measure(word: str) -> int:
    return _shape(word).count("vc")


def _doubled(word: str) -> bool:
    return len(word) > 1 and word[-1] == word[-2] and _shape(word).endswith("c")


def _short(word: str) -> bool:
    """Return whether a word ends like hop, but not like snow, box or tray."""
    return _shape(word).endswith("cvc") and word[-1] not in "wxy"
