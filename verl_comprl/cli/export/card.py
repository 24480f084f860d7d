"""The model card of an exported model: a README.md with the metadata that the Hugging Face hub reads."""

from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml

from verl_comprl import __version__
from verl_comprl.cli.evaluation_result import arms
from verl_comprl.cli.export.checkpoint import Checkpoint
from verl_comprl.config.tree import ComprlConfig

_SUBTREES = {"actor": "actor_rollout_ref", "extractor": "extractor"}
_WRITERS = {
    "own": "a model that was not trained",
    "endpoint": "a model behind an endpoint, which was not trained",
    "actor": "the actor itself, with its present weights",
}
"""What the extractor of a run was if it was not trained, by ``comprl.extractor.backend``."""


def write_card(folder: Path, checkpoint: Checkpoint, role: str, *, adapter: bool) -> None:
    """Write ``README.md`` into the folder of an exported model.

    Args:
        folder: The model's folder.
        checkpoint: The checkpoint that it is from.
        role: ``actor`` or ``extractor``.
        adapter: Whether ``folder/lora_adapter`` holds what was trained.
    """
    lines = [*_metadata(checkpoint, role), *_description(checkpoint, role)]
    lines += [*_usage(adapter), *_training(checkpoint, role), *_evaluation(checkpoint)]
    (folder / "README.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _base(checkpoint: Checkpoint, role: str) -> str:
    return str(checkpoint.config[_SUBTREES[role]].model.path) if checkpoint.config else ""


def _is_on_the_hub(base: str) -> bool:
    return base.count("/") == 1 and not base.startswith((".", "/", "~")) and not Path(base).exists()


def _metadata(checkpoint: Checkpoint, role: str) -> Iterator[str]:
    base = _base(checkpoint, role)
    fields: dict[str, Any] = {
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["verl", "verl-comprl", "reinforcement-learning", *_method_tags(checkpoint), role],
    }
    if _is_on_the_hub(base):
        fields["base_model"] = base
    yield f"---\n{yaml.safe_dump(fields, sort_keys=False).strip()}\n---\n"


def _method_tags(checkpoint: Checkpoint) -> list[str]:
    return ["complementary-rl"] if checkpoint.settings and checkpoint.settings.experience else []


def _description(checkpoint: Checkpoint, role: str) -> Iterator[str]:
    settings = checkpoint.settings
    if settings is None:
        run = "a run"
    else:
        run = "a Complementary RL run" if settings.experience else "a run without experience"
    yield f"# {role.capitalize()} of {run}, step {checkpoint.step}\n"
    about = [_role(settings, role), *([] if settings is None else [_learning(checkpoint, settings)])]
    yield (
        f"{' '.join(about)} Made with verl-comprl {__version__}, an implementation of Complementary RL "
        "([arXiv 2603.17621](https://arxiv.org/abs/2603.17621)), on [verl](https://github.com/verl-project/verl) "
        f"{version('verl')}.\n"
    )


def _role(settings: ComprlConfig | None, role: str) -> str:
    if settings is None:
        return f"It is the {role} of a run whose settings are not known."
    if role == "actor":
        if not settings.experience:
            return "It acts in environments."
        guided = "with" if settings.guided_fraction == 1 else "with or without"
        return f"It acts in environments, {guided} one entry of experience in its first message."
    distils = "reads finished episodes and writes experience for the actor" if settings.extractor.distill else ""
    answers = "answers the actor's questions from an entry" if settings.search_and_ask.max_calls else ""
    return f"It {', and '.join(filter(None, (distils, answers))) or 'writes nothing'}."


def _learning(checkpoint: Checkpoint, settings: ComprlConfig) -> str:
    """Say which models the run has trained, and where its experience came from."""
    trained = checkpoint.trained
    actor = "The actor was trained" if "actor" in trained else "The actor was not trained: its weights are the base's"
    if not settings.experience:
        return f"{actor}, without experience and extractor."
    if len(trained) == 2:
        learning = "Actor and extractor were trained in one run around a shared bank of experience"
    elif "extractor" in trained:
        learning = f"{actor}; the extractor was, in one run around a shared bank of experience"
    else:
        learning = (
            f"{actor}. Its experience came from a bank, and the extractor was {_WRITERS[settings.extractor.backend]}"
        )
    return f"{learning}." if settings.extractor.distill else f"{learning}. The bank was given and did not grow."


def _usage(adapter: bool) -> Iterator[str]:
    yield "## Use\n\n```python\nfrom transformers import AutoModelForCausalLM, AutoTokenizer\n"
    yield 'model = AutoModelForCausalLM.from_pretrained("FOLDER", dtype="bfloat16")'
    if adapter:
        yield "\nfrom peft import PeftModel\n"
        yield 'model = PeftModel.from_pretrained(model, "FOLDER/lora_adapter")'
    yield 'tokenizer = AutoTokenizer.from_pretrained("FOLDER")\n```\n'
    if adapter:
        yield "The weights in this folder are those of the base model; what was trained is in `lora_adapter`.\n"


def _training(checkpoint: Checkpoint, role: str) -> Iterator[str]:
    config = checkpoint.config
    if config is None:
        return
    base, subtree = _base(checkpoint, role), config[_SUBTREES[role]]
    yield "## Training\n\n| | |\n|---|---|"
    yield f"| base model | {base if _is_on_the_hub(base) else f'`{Path(base).name}` (a local folder)'} |"
    yield f"| arm | `{config.comprl.arm}` |"
    yield f"| actor steps | {checkpoint.step} |"
    trained = role in checkpoint.trained
    yield f"| trained | {'yes' if trained else 'no'} |"
    if trained:
        yield f"| learning rate | {subtree.actor.optim.lr:g} |"
    if role == "actor":
        yield f"| prompts per step | {config.data.train_batch_size} |"
        yield f"| rollouts per prompt | {config.actor_rollout_ref.rollout.n} |"
    elif trained:
        yield f"| samples per update | {config.comprl.extractor.batch_size} |"
    yield ""


def _evaluation(checkpoint: Checkpoint) -> Iterator[str]:
    found = arms({name: value for name, value in checkpoint.evaluation.items() if name.startswith("comprl/eval/")})
    rows = {**found["tasks"], **({"average": found["average"]} if found["average"] else {})}
    if not rows:
        return
    yield f"## Evaluation at step {checkpoint.step}\n\nSuccess on the run's validation tasks (95 % interval):\n"
    yield "| task | with experience | without |\n|---|---|---|"
    for task, measured in rows.items():
        yield f"| {task} | {_success(measured.get('with'))} | {_success(measured.get('without'))} |"


def _success(measured: dict[str, float] | None) -> str:
    if not measured or "success" not in measured:
        return "-"
    low, high = measured.get("success_low"), measured.get("success_high")
    interval = f" ({low:.0%} to {high:.0%})" if low is not None and high is not None else ""
    return f"{measured['success']:.0%}{interval}"
