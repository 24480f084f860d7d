"""Checks that tokenizers and chat templates can carry an episode, before any model is loaded.

Each mistake would otherwise show in every rollout or extractor call of a run that has started. A model that is not on
this machine is not checked; what a template merely lacks is made up for (``rollout.chat_template``).
"""

from collections.abc import Iterator
from typing import Any

from omegaconf import DictConfig, OmegaConf

from verl_comprl.config.models import local_tokenizer, read_model_file, stop_tokens
from verl_comprl.config.reading import ConfigError
from verl_comprl.config.tree import ComprlConfig
from verl_comprl.rollout.chat_template import describe_tools, shows_tools, tool_response, turn_end
from verl_comprl.rollout.messages import Message, initial_messages, observation_message
from verl_comprl.rollout.tool_schema import SEARCH_AND_ASK_SCHEMA

_PROMPT: list[Message] = [{"role": "system", "content": "Rules."}, {"role": "user", "content": "Task."}]
_PARSER = "hermes"


def check_templates(config: DictConfig, comprl: ComprlConfig) -> None:
    """Check the actor's template, and the extractor's if the run has a model for it.

    Raises:
        ConfigError: With one line per mistake.
    """
    mistakes = list(_actor(config, comprl))
    if comprl.has_extractor_engine:
        mistakes += _extractor(config)
    if mistakes:
        raise ConfigError("\n".join(mistakes))


def _actor(config: DictConfig, comprl: ComprlConfig) -> Iterator[str]:
    model = config.actor_rollout_ref.model
    tokenizer = local_tokenizer(model)
    if tokenizer is None:
        return
    yield from _ending("actor_rollout_ref", model, tokenizer)
    if not tokenizer.chat_template:
        return
    tools = [SEARCH_AND_ASK_SCHEMA] if comprl.experience and comprl.search_and_ask.max_calls else []
    form = config.actor_rollout_ref.rollout.multi_turn.format
    if tools and form != _PARSER and not shows_tools(tokenizer):
        yield (
            f"actor_rollout_ref.rollout.multi_turn.format={form}, but the chat template of {model.path} shows "
            f"no tools, and they are described in another format; set {_PARSER}, or comprl.search_and_ask.max_calls=0"
        )
    kwargs: Any = OmegaConf.to_container(OmegaConf.create(config.data.get("apply_chat_template_kwargs") or {}))
    try:
        _play(tokenizer, read_model_file(model.path, "config.json").get("model_type"), tools, kwargs)
    except Exception as error:  # templates and verl's builders raise what they like
        yield _unfit("actor_rollout_ref", model, "an episode of system, user, assistant and user messages", error)


def _play(tokenizer: Any, model_type: str | None, tools: list[dict[str, Any]], kwargs: dict[str, Any]) -> None:
    """Put a short episode through verl's token builder, as ``Conversation`` does."""
    from verl.utils.tokenizer import continuous_token_wiring as wiring

    family = wiring.resolve_continuous_token_model_family("auto", hf_model_type=model_type)
    if wiring.get_continuous_token_builder_class(family).supports_multimodal():
        return  # needs the model's processor
    builder = wiring.create_continuous_token_builder(tokenizer, model_family=family, chat_template_kwargs=kwargs)
    shown = shows_tools(tokenizer)
    messages = initial_messages(_PROMPT, "Start.")
    messages = messages if shown or not tools else describe_tools(messages, tools)
    given = tools if shown and tools else None
    ids = builder.build_initial_tokens(messages, tools=given)
    messages = [*messages, {"role": "assistant", "content": "Call."}]
    reply: Message = {"role": "tool", "content": "Advice."} if given else tool_response("Advice.")
    for message in [reply, observation_message("Next.")] if tools else [observation_message("Next.")]:
        builder.merge_context_tokens(messages, [*messages, message], ids, tools=given)


def _extractor(config: DictConfig) -> Iterator[str]:
    model = config.extractor.model
    tokenizer = local_tokenizer(model)
    if tokenizer is None:
        return
    yield from _ending("extractor", model, tokenizer)
    if not tokenizer.chat_template:
        return
    try:
        tokenizer.apply_chat_template(_PROMPT, tokenize=True, add_generation_prompt=True)
    except Exception as error:
        yield _unfit("extractor", model, "a system and a user message", error)


def _ending(subtree: str, model: DictConfig, tokenizer: Any) -> Iterator[str]:
    """Check that there is a template, and that generation stops where the template ends a turn."""
    name = f"{subtree}.model.path={model.path}"
    if not tokenizer.chat_template:
        yield f"{name} has no chat template; use an instruct model or set {subtree}.model.custom_chat_template"
        return
    if tokenizer.eos_token_id is None:
        yield f"{name}: its tokenizer has no end token; set eos_token in its tokenizer_config.json"
        return
    try:
        end = turn_end(tokenizer)
    except Exception:  # a template can raise anything; reported as an episode that cannot be rendered
        return
    stops = stop_tokens(model.path, tokenizer)
    if end is None:
        yield (
            f"{name}: no special token ends an assistant's turn in its chat template, so generation would never stop; "
            f"set {subtree}.model.custom_chat_template to one with {tokenizer.eos_token!r} after it"
        )
    elif end not in stops:
        written, known = tokenizer.convert_ids_to_tokens([end])[0], tokenizer.convert_ids_to_tokens(sorted(stops))
        yield (
            f"{name}: its chat template ends a turn with {written!r}, but generation stops at {', '.join(known)}; set "
            f"eos_token in its tokenizer_config.json to {written!r}"
        )


def _unfit(subtree: str, model: DictConfig, what: str, error: Exception) -> str:
    # verl tries another form of the messages after the first error, and raises what that one gives.
    first: BaseException = error
    while first.__context__ is not None:
        first = first.__context__
    reason = " ".join(str(first).split()) or type(first).__name__
    return (
        f"{subtree}.model.path={model.path}: its chat template cannot render {what} ({reason}); set "
        f"{subtree}.model.custom_chat_template to one that can"
    )
