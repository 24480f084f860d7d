"""Converts the weights of one model of a checkpoint, with verl's own merger."""

import io
import logging
import shutil
from contextlib import redirect_stdout
from pathlib import Path


def export_model(source: Path, target: Path) -> bool:
    """Write weights, config and tokenizer to ``target``; the return value says whether there is a LoRA adapter.

    Args:
        source: ``RUN/global_step_N/actor`` or ``extractor``.
        target: Folder to make.

    Raises:
        ValueError: If another engine than FSDP wrote it.
    """
    if not (source / "fsdp_config.json").exists():
        raise ValueError(
            f"{source} has no fsdp_config.json: it was written by another engine than FSDP; "
            "convert it with python -m verl.model_merger"
        )
    from verl.model_merger.base_model_merger import ModelMergerConfig
    from verl.model_merger.fsdp_model_merger import FSDPModelMerger

    target.mkdir(parents=True)
    config = ModelMergerConfig(
        operation="merge",
        backend="fsdp",
        local_dir=str(source),
        target_dir=str(target),
        hf_model_config_path=str(source / "huggingface"),
    )
    # It warns that a compiled model could not use the mesh of a shard; nothing is compiled here.
    logging.getLogger("torch.distributed.device_mesh").setLevel(logging.ERROR)
    with redirect_stdout(io.StringIO()):  # it tells of every tensor
        merger = FSDPModelMerger(config)
        merger.merge_and_save()
        merger.cleanup()
    for weights in target.rglob("*.safetensors"):  # safetensors makes them readable by their owner alone
        shutil.copymode(target / "config.json", weights)
    return (target / "lora_adapter").is_dir()
