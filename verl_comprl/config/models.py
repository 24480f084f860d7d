"""Reading of a model's files before anything is started: its config, its stop tokens, its tokenizer."""

import json
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

ANSWER_PART = 4
"""The part of a context too short for prompt and answer, one in so many tokens, that an answer may take."""

_TOKENIZER_FILES = ("tokenizer_config.json", "tokenizer.json")


def find_model_file(model: str, name: str) -> Path | None:
    """Return a file of a model folder, or of a model in the hub's cache; ``None`` if it is not on this machine."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    if (file := Path(model) / name).exists():
        return file
    try:
        cached = try_to_load_from_cache(model, name)
    except HFValidationError:
        return None  # no name that the hub could have
    return Path(cached) if isinstance(cached, str) else None


def bound_server(model: DictConfig) -> None:
    """Let a model's server hold a prompt and an answer; verl would take the longest text that the model can read.

    For one of 262,144 tokens a single request needs 36 GiB of cache, which a shared GPU does not have.

    Args:
        model: Settings of an engine and its server; ``rollout.max_model_len`` is filled in if it is null.
    """
    rollout = model.rollout
    if rollout.get("max_model_len") is None:
        longest = read_model_file(model.model.get("path") or "", "config.json").get("max_position_embeddings")
        needed = rollout.prompt_length + rollout.response_length
        rollout.max_model_len = min(needed, longest or needed)


def bound_calls(rollout: DictConfig) -> None:
    """Let the extractor's prompts and answers be no longer than its server holds, and print what they are then.

    A longer prompt would be refused, so that a long episode would never become experience; of one that is a little
    shorter the answer would be cut off, and punished.

    Args:
        rollout: ``extractor.rollout``, of which ``prompt_length`` and ``response_length`` are lowered if they must be.
    """
    held = rollout.max_model_len
    if rollout.prompt_length + rollout.response_length <= held:
        return
    rollout.response_length = min(rollout.response_length, held // ANSWER_PART)
    rollout.prompt_length = held - rollout.response_length
    lengths = f"prompt_length={rollout.prompt_length} and response_length={rollout.response_length}"
    print(f"the extractor's server holds {held} tokens, so that extractor.rollout.{lengths} count")


def read_model_file(model: str, name: str) -> dict[str, Any]:
    """Return a JSON file of a model; empty if it is not on this machine, or no JSON object."""
    try:
        file = find_model_file(model, name)
        fields = json.loads(file.read_text(encoding="utf-8")) if file else {}
    except (OSError, ValueError):
        return {}
    return fields if isinstance(fields, dict) else {}


def stop_tokens(model: str, tokenizer: Any) -> set[int]:
    """Return the tokens at which a server ends a generation: those of tokenizer, generation config and config."""
    found = {tokenizer.eos_token_id}
    for name in ("generation_config.json", "config.json"):
        given = read_model_file(model, name).get("eos_token_id")
        found.update(given if isinstance(given, list) else [given])
    return found - {None}


def load_tokenizer(model: DictConfig, **options: Any) -> Any:
    """Load the tokenizer of a ``model`` subtree as verl's workers have it, with the template that the user has set.

    Args:
        model: ``actor_rollout_ref.model`` or ``extractor.model``.
        **options: For transformers' ``from_pretrained``.
    """
    from verl.utils.tokenizer import hf_tokenizer

    path = model.get("tokenizer_path") or model.path
    tokenizer = hf_tokenizer(path, trust_remote_code=model.get("trust_remote_code", False), **options)
    if model.get("custom_chat_template") is not None:
        tokenizer.chat_template = model.custom_chat_template
    return tokenizer


def local_tokenizer(model: DictConfig) -> Any:
    """Return the tokenizer of a model subtree if it is on this machine, else ``None``; downloads nothing."""
    path = Path(model.get("tokenizer_path") or model.path)
    if path.is_dir() and not any((path / name).exists() for name in _TOKENIZER_FILES):
        return None
    try:
        return load_tokenizer(model, local_files_only=True)
    except (OSError, ValueError):  # not here, or no name that the hub knows
        return None
