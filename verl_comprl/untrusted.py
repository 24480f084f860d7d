"""Takes from untrusted text what a model would read as control structure: parts of chat templates, and delimiters.

Owns the markers of model families and how disguised ones are recognised. Whoever puts a text of an environment, a
model or a bank into a prompt calls :func:`without_control_tokens` with the tokenizer that reads it. Standard library.
"""

import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from verl_comprl.turn_markers import between_turns, marker_pattern, turn_markers

CHARACTERS_PER_TOKEN = 32
"""More than honest texts have: about four on average, screens of padded or ruled lines up to 27.

With more characters than this for each token that there is room for, a text hardly fits. To find that out with a
tokenizer takes seconds, and some give up with a panic.
"""

SCHEMA_CHARACTERS = CHARACTERS_PER_TOKEN * 4096
"""Of an environment's tools in all: they are cleaned before it is known how much room the prompt has for them."""

FAMILIES = "|".join(
    (
        # ChatML, Qwen, Llama 3, DeepSeek. Not over lines, and not of signs alone, as in maps of games.
        r"<\|(?=[^<>|\n]*[^\W_])(?!\s)[^<>|\n]{1,64}\|>",
        r"</?s>|<(?:unk|pad|bos|eos|sep|cls|mask|sop|eop|eod|eot)>",  # SentencePiece: Llama 2, Mistral, Gemma, GLM
        # BERT, GLM. Not [SEP], with which WebShop joins the parts of a page: no model that writes has such a token, and
        # that of a tokenizer which has one is removed in any case.
        r"(?-i:\[(?:CLS|PAD|UNK|[gs]?MASK)\])",
        r"(?-i:\[/?(?:INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_(?:CALLS|RESULTS|CONTENT)|CALL_ID|THINK"
        r"|MODEL_SETTINGS|IMG(?:_BREAK|_END)?|(?:BEGIN_)?AUDIO|(?:NEXT|REPEAT)_AUDIO_TEXT|STREAMING_(?:PAD|WORD)"
        r"|TRANSCRIBE)\])",  # Mistral
        r"<</?SYS>>",  # Llama 2
        r"<(?:start|end)_of_(?:turn|image|audio)>|<unused\d+>|<extra_id_\d+>",  # Gemma, T5
        r"<(?:repo_?name|file_sep|gh_stars|issue_(?:start|comment|closed)|empty_output"
        r"|jupyter_(?:start|text|code|output|script)|fim[_-](?:prefix|middle|suffix|pad))>",  # SmolLM2, StarCoder
        r"</?(?:function|parameter)=[^<>\n]*>|</(?:function|parameter)>|</?function_calls>"
        r"|</?invoke(?:[ \t][^<>\n]*)?>|</?arg_(?:key|value)>",  # Qwen-Coder, GLM and others: calls of tools
        r"<\|(?=_*[a-z])[a-z_]{3,32}>|<(?=_*[a-z])[a-z_]{3,32}\|>|<\|\"\|>|<\|DSML\|[^<>\n]*>?",  # Gemma 4, DeepSeek
        r"\[\|(?:[a-z_]{3,32}|(?-i:[A-Z]{2}))\|\]",  # EXAONE, Jais, BlueLM
        r"\]<\][^<>\[\]\n]{1,64}\[>\[",  # MiniMax M3
        r"\]~!b\[|\]~b\]|\]![a-z]~\[|\[e~\[|<seed:[^<>\n]{1,64}>|</?minimax:[^<>\n]{1,64}>",  # MiniMax, Seed
        r"\|\|\|(?:IP|EMAIL|PHONE)_[A-Z]{2,10}\|\|\|",  # OLMo
        r"<reserved_\d+>|<SPECIAL_\d+>|\[UNUSED(?:_TOKEN_)?\d+\]",  # Baichuan, Nemotron, InternLM, openPangu
        r"<TOKENS_UNUSED_\d+>|<eo[ah]>|<_(?:start|end|pad|system|user|bot)>",  # InternLM, TeleChat
    )
)
"""Regular expression for the control tokens of model families, to be matched with ``re.IGNORECASE``.

None goes over lines: one that begins in a text and ends in the next would take with it what stands between them. What
honest texts have as well, such as the ``[ARGS]`` of a command's help, is not here but in :func:`break_tags`.
"""

_FAMILY = re.compile(FAMILIES, re.IGNORECASE)
_SWITCH = (
    r"/(?:(?=no_?think|system_override)"
    r"|(?=think(?![A-Za-z0-9_/-]|\.\w))(?<![A-Za-z0-9_/~}-]/)(?:(?<!\./)|(?<=[^\W_]\./)|(?<=\.\.\./))"
    r"(?!(?<=</)think>|(?<=< /)think>))"
)
"""Switches of reasoning (Qwen 3, SmolLM3). ``/think`` can also end an element or be a part of a path; letters of other
scripts do not make one, since their texts may have no spaces."""
_SEARCHED = re.compile(r"(?<!<)/((?:no_?)?think)")
"""In a template that looks for one in the text of messages, wherever it stands there (Nemotron)."""
_DELIMITER = re.compile(r"<(?=[\s/]*+(?:experience|tool_response|tools))", re.IGNORECASE)
"""Begin of a tag of ours. It may also compare two terms or begin a line of a diff, so that it stays readable."""
_NAME = re.compile(
    r"<(?=/?(?:think|role|system|user|human|assistant|ai|bot|filename|end|eo[cmr]|escape|tool(?:call|response)"
    r"|用户|助手|系统|(?:[a-z][a-z0-9]*)?(?:_[a-z0-9]+)+)>)"
    # In the case that they have: code has "names[user]" and "cat >>file<<EOF".
    r"|(?-i:\[(?=(?:[BE]OS|EOT|BOT|USER|ARGS|PREFIX|MIDDLE|SUFFIX|(?:start|end)_header_id)\])"
    r"|>>(?=[A-Z_]{4,16}(?:_[0-9]{1,4})?<<)|\|(?=(?:ENDOFTEXT|NEWLINE|SPEAKER)\|))",
    re.IGNORECASE,
)
"""Begin of a tag that may begin a turn of some model: an element of HTML has no underscore in its name. ``role`` is how
Ling, Ring and LLaDA2 begin one; these are no families' markers above, since documents have such elements. ``end``:
Spark; ``eoc``, ``eom``, ``eor``: MOSS; ``escape``: FunctionGemma; ``toolcall``: Nemotron; in Chinese: MiniCPM. With
brackets: Kimi, Skywork, Mistral; ``>>``: Falcon; bars: Fuyu, where a cell of a table gets a space."""
SYNTAX = re.compile(r"[<>\[\]{}|]")
"""Characters of which every control token has one, but for words that a tokenizer marks as special."""
_LOOKALIKES = str.maketrans(
    "‹›〈〉⟨⟩❮❯˂˃ᐸᐳ◁▷∣ǀ│❘¦⁄∕∶ː꞉˸аеорсухіѕјԁһԛԝкАВЕІЈКМНОРЅТХСУԌԚԜοανριυΑΒΕΖΗΙΚΜΝΟΡΤΥΧӏптгτσγηıօ",  # noqa: RUF001 - these are the lookalikes
    "<><><><><><><>|||||//::::aeopcyxisjdhqwkABEIJKMHOPSTXCYGQWoavpiuABEZHIKMNOPTYXlntrtoynio",
)
_BLANK = re.compile("[\u115f\u1160\u3164\uffa0\u2800]")
"""Letters and a symbol that show nothing, or a blank."""
_IGNORABLE = re.compile("[\u2065\ufff0-\ufff8\U000e0000-\U000e0fff]")
"""Not assigned, in part, and shown as nothing (Unicode's ``Default_Ignorable_Code_Point``)."""
_CONTROLS = re.compile(r"[\x00-\x08\x0e-\x1b\x1f\x7f]")
"""Those of ASCII that end no line, and are no white space that tokenizers keep."""
_LINE_END = re.compile("\r(?!\n)|[\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")
"""All but the usual ones. Some tokenizers leave them out, so that the parts of a token join."""
_PASSES = 8


class _Known(NamedTuple):
    """Control structure of a tokenizer and its chat template."""

    tokens: re.Pattern[str] | None
    ids: frozenset[int]
    parts: re.Pattern[str]
    """Of which every token has one."""
    broken: re.Pattern[str]
    """Parts behind which a space is put: of switches, and of what begins a turn in a template of plain text."""


def without_control_tokens(text: str, tokenizer: Any = None) -> str:
    """Return ``text`` with a space in place of each control token of any known model family, and of ``tokenizer``.

    A space, and not nothing, so that the halves of another token cannot join. A question mark stands for each lone
    surrogate (a byte that is no text), with which no tokenizer encodes anything. Encoding the result yields no id of a
    special or added token, except that of unknown characters, and tokens that are text: white space, up to two
    characters such as the ``!`` with which some pad, and words that are added but not special. Special words are
    removed as they are written. Line ends other than LF and CR LF become LF.

    Switches of reasoning, such as ``/no_think``, and what begins a turn in a template of ``tokenizer`` that uses plain
    text for it, get a space in them.

    Args:
        text: Untrusted text.
        tokenizer: Hugging Face tokenizer of the model that reads the text; None where it is not known (an endpoint).
    """
    known = _known(tokenizer)
    text = _LINE_END.sub("\n", text.encode("utf-8", "replace").decode())
    # What is left out of a token can stand in a marker that has a space.
    return _without_turns(_without_tokens(text, known, tokenizer), known)


def _without_turns(text: str, known: _Known) -> str:
    """Break what begins a turn, and switches."""
    # What shows nothing can hide in a word, and part two; what shows a blank can do the other at the same time.
    ways = [("", "")]
    if not _is_plain(text):
        ways += [(" ", " "), ("", " ")] if _BLANK.search(text) else [(" ", " ")]
    for _ in range(_PASSES):  # one can stand in another
        broken = text
        for invisible, blank in ways:
            broken = replace_marked(broken, known.broken, "{} ", invisible=invisible, blank=blank)
        if broken == text:
            break
        text = broken
    return text


def _without_tokens(text: str, known: _Known, tokenizer: Any) -> str:
    for _ in range(_PASSES):  # one can stand in another
        shorter = replace_marked(text, _FAMILY, " ")
        if known.tokens is not None:
            shorter = replace_marked(shorter, known.tokens, " ")
        if shorter == text:
            # Tokenizers match these tokens literally, apart from Unicode normalisation.
            if text.isascii() or not known.ids:
                return text
            spans = [span for id, span in _encode(tokenizer, text) if id in known.ids]
            if not spans:
                return text
            if any(start >= end for start, end in spans):
                break  # no offsets: a tokenizer in pure Python
            for start, end in reversed(spans):
                shorter = f"{shorter[:start]} {shorter[end:]}"
        text = shorter
    return _without_syntax(text.encode("ascii", "replace").decode(), known)


def _without_syntax(text: str, known: _Known) -> str:
    """Return what no token can be in, for a text of which the tokens cannot be removed one by one."""
    text = replace_marked(text, SYNTAX, " ")
    # Words, which have no syntax: a space in the place of one may complete another.
    return replace_marked(text, known.tokens, "?") if known.tokens is not None else text


def without_delimiters(text: str, tokenizer: Any = None) -> str:
    """Return ``text`` with ``&lt;`` for the ``<`` of the tags that mark experience and answers of tools in our prompts.

    And without control tokens: a tag can be hidden around one, and appear when that is removed later, when the tags of
    the prompt can no longer be told from those of the text. Without a tokenizer, also those of
    :func:`break_tags`.

    Args:
        text: Untrusted text.
        tokenizer: As in :func:`without_control_tokens`.
    """
    if tokenizer is None:
        text = break_tags(text)
    for _ in range(_PASSES):
        clean = replace_marked(without_control_tokens(text, tokenizer), _DELIMITER, "&lt;")
        if clean == text:
            return text
        text = clean
    # Markers inside of markers, more often than in any honest text.
    known = _known(tokenizer)
    return _without_turns(_without_syntax(text, known), known)


def schema_without_delimiters(schema: Any, tokenizer: Any = None) -> Any:
    """Return a part of a tool's schema, all texts of it, the names as well, :func:`without_delimiters`.

    With more than ``SCHEMA_CHARACTERS`` in all, the longest texts are cut first: cleaning takes time.
    """
    share, left = None, SCHEMA_CHARACTERS
    lengths = sorted(map(len, _texts(schema)))
    for number, length in enumerate(lengths):
        if length > left // (len(lengths) - number):
            share = left // (len(lengths) - number)
            break
        left -= length

    def clean(part: Any) -> Any:
        match part:
            case str():
                return without_delimiters(part[:share], tokenizer)
            case dict():
                return {clean(key): clean(value) for key, value in part.items()}
            case list() | tuple():
                return list(map(clean, part))
        return part

    return clean(schema)


def _texts(schema: Any) -> Iterator[str]:
    """Return all texts of a part of a schema, names of a mapping included."""
    match schema:
        case str():
            yield schema
        case dict():
            for item in schema.items():
                yield from _texts(item)
        case list() | tuple():
            for item in schema:
                yield from _texts(item)


def break_tags(text: str) -> str:
    """Return ``text`` with a space in the tags that may be tokens of a model whose tokenizer is not known.

    Tokens match literally, so that ``< tool_call>`` is none, and the tag can still be read.
    """
    return replace_marked(text, _NAME, "{} ")


def replace_marked(text: str, pattern: re.Pattern[str], by: str, *, invisible: str = "", blank: str = "") -> str:
    """Replace what ``pattern`` matches in ``text``, also if it is written with other characters that look the same.

    What counts as the same is said in :func:`folded`. In ``by``, ``{}`` stands for what is replaced. To the pattern, a
    character that shows nothing is ``invisible``, and a letter or symbol that does is ``blank``.
    """
    if _is_plain(text):
        return pattern.sub(lambda match: by.replace("{}", match[0]), text)
    pieces = [_folded(char) or (blank if _BLANK.match(char) else invisible) for char in text]
    origin = [index for index, piece in enumerate(pieces) for _ in piece]
    kept, end = [], 0
    for match in pattern.finditer("".join(pieces)):
        if match.start() < match.end() and origin[match.start()] >= end:
            start, before = origin[match.start()], end
            end = origin[match.end() - 1] + 1
            kept += [text[before:start], by.replace("{}", text[start:end])]
    return "".join((*kept, text[end:]))


def folded(text: str) -> str:
    """Return ``text`` as a reader sees it.

    Full-width and other compatibility characters, letters of other scripts and accents become the characters that
    they look like, digits of other scripts those of ASCII. Invisible characters (variation selectors, zero-width ones,
    control characters) are left out.
    """
    return _CONTROLS.sub("", text) if text.isascii() else "".join(map(_folded, text))


def _is_plain(text: str) -> bool:
    """Return whether nothing in ``text`` can be taken for something else."""
    return text.isascii() and not _CONTROLS.search(text)


@lru_cache(4096)
def _folded(char: str) -> str:
    decomposed = unicodedata.normalize("NFKD", char)
    return "".join(str(unicodedata.digit(c, c)) for c in decomposed if not _is_invisible(c)).translate(_LOOKALIKES)


def _is_invisible(char: str) -> bool:
    category = unicodedata.category(char)
    is_control = category == "Cc" and (char == "\x1f" or not char.isspace())
    return category in ("Mn", "Me", "Cf") or bool(_BLANK.match(char)) or is_control or bool(_IGNORABLE.match(char))


@lru_cache(8)
def _known(tokenizer: Any) -> _Known:
    added = added_tokens(tokenizer)
    special = dict(
        zip(getattr(tokenizer, "all_special_tokens", ()), getattr(tokenizer, "all_special_ids", ()), strict=False)
    )
    special |= {str(token): id for id, token in added.items() if getattr(token, "special", False)}
    tokens = {
        token: id
        for token, id in ({str(token): id for id, token in added.items()} | special).items()
        # Some tokenizers add words and runs of spaces, or pad with "!": these are text.
        if len(token) > 2 and (SYNTAX.search(folded(token)) or (token in special and not token.isspace()))
    }
    shown = set(filter(str.strip, ("".join(map(_folded, token)) for token in tokens)))
    # Some have thousands that are of a family, each of which would be tried at every "<" of a text.
    shown = {token for token in shown if not all(map(_FAMILY.fullmatch, (token, token.lower(), token.upper())))}
    # A word in other letters, such as "user" for "USER", is none, unless the tokenizer changes the text first.
    changed = {"".join(map(_folded, str(token))) for token in added.values() if getattr(token, "normalized", False)}
    words = {token: re.escape(token) for token in shown if not SYNTAX.search(token)}
    words = {token: word if token in changed else f"(?-i:{word})" for token, word in words.items()}
    alternatives = [words.get(token, re.escape(token)) for token in sorted(shown, key=len, reverse=True)]
    control = re.compile("|".join((*alternatives, FAMILIES)), re.IGNORECASE)
    markers = turn_markers([folded(text) for text in between_turns(tokenizer)], control)
    searched = {rf"/(?={name})" for name in _SEARCHED.findall(_template(tokenizer))}
    return _Known(
        tokens=re.compile("|".join(alternatives), re.IGNORECASE) if alternatives else None,
        ids=frozenset(tokens.values()) - {getattr(tokenizer, "unk_token_id", None)},
        parts=re.compile("|".join((SYNTAX.pattern, *sorted(words.values()))), re.IGNORECASE),
        broken=re.compile(
            "|".join(filter(None, (*sorted(searched), _SWITCH, *map(marker_pattern, markers)))), re.IGNORECASE
        ),
    )


def may_have_tokens(text: str, tokenizer: Any = None) -> bool:
    """Return whether :func:`without_control_tokens` may take a token from ``text``, or break off a part of one."""
    return bool(_known(tokenizer).parts.search(folded(text)))


def added_tokens(tokenizer: Any) -> Mapping[int, Any]:
    """Return the tokens that were added to a tokenizer's vocabulary, by id; none for one that cannot tell them.

    mistral-common's cannot (``MistralCommonBackend``). It names its special tokens, and reads none from a text.
    """
    added = getattr(tokenizer, "added_tokens_decoder", None)
    return added if isinstance(added, Mapping) else {}


def _template(tokenizer: Any) -> str:
    """Return the text of a tokenizer's chat template, or of all if it has several by name."""
    template = getattr(tokenizer, "chat_template", None) or ""
    return "\n".join(map(str, template.values())) if isinstance(template, dict) else str(template)


def _encode(tokenizer: Any, text: str) -> Sequence[tuple[int, tuple[int, int]]]:
    """Return the ids of ``text`` with the characters that each was made of; (0, 0) if the tokenizer cannot tell."""
    if not getattr(tokenizer, "is_fast", False):
        return [(id, (0, 0)) for id in tokenizer.encode(text, add_special_tokens=False)]
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    return list(zip(encoded["input_ids"], encoded["offset_mapping"], strict=True))
