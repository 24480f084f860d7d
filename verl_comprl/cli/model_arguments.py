"""Arguments that name a model: an OpenAI-compatible endpoint's, or one that vLLM serves while the command runs."""

import argparse
import os
from typing import TYPE_CHECKING

from verl_comprl.cli.numbers import positive, temperature

if TYPE_CHECKING:
    from verl_comprl.extractor.config import EndpointConfig


def add_model(parser: argparse.ArgumentParser, role: str, *, local: bool) -> None:
    """Add the arguments: needed where it may also be a local model, otherwise optional.

    Args:
        parser: Of the command.
        role: What the model is in it, such as ``extractor``.
        local: Whether the command can serve a model itself.
    """
    where = parser.add_mutually_exclusive_group(required=True) if local else parser
    where.add_argument(
        "--endpoint",
        metavar="URL",
        help=f"OpenAI-compatible endpoint of the {role}, such as http://127.0.0.1:8000/v1",
    )
    if local:
        where.add_argument(
            "--local",
            nargs="?",
            const="",
            metavar="OPTIONS",
            help="instead: serve MODEL, a folder or a name on the hub, with vLLM on this machine while the command "
            "runs; options of vllm serve are given as in --local='--max-model-len 8192'",
        )
    parser.add_argument("--model", required=local, help="the endpoint's name of its model")
    parser.add_argument(
        "--key-variable",
        default="OPENAI_API_KEY",
        metavar="NAME",
        help="environment variable with the endpoint's key (default: %(default)s)",
    )
    parser.add_argument("--temperature", type=temperature, default=1.0, help="of the endpoint's sampling (default: 1)")
    parser.add_argument("--max-tokens", type=positive, default=4096, help="longest answer (default: 4096)")
    parser.add_argument(
        "--length-parameter",
        choices=("max_tokens", "max_completion_tokens"),
        default="max_tokens",
        help="name under which the endpoint takes --max-tokens (default: %(default)s)",
    )


def chosen_endpoint(options: argparse.Namespace) -> tuple["EndpointConfig", str]:
    """Return the endpoint that the arguments name, and its key, which nothing will show from now on.

    Raises:
        ValueError: If an argument is wrong.
    """
    from pydantic import ValidationError

    from verl_comprl.extractor.config import EndpointConfig
    from verl_comprl.record.redaction import redact_also
    from verl_comprl.settings import mistakes

    fields = {
        "url": options.endpoint,
        "model": options.model,
        "key_variable": options.key_variable,
        "length_parameter": options.length_parameter,
    }
    try:
        config = EndpointConfig.model_validate(fields)
    except ValidationError as error:
        raise ValueError("; ".join(mistakes(error, EndpointConfig, "endpoint"))) from error
    redact_also(config.key_variable)
    return config, os.environ.get(config.key_variable, "") if config.key_variable else ""
