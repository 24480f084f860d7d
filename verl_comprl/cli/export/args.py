"""Command-line arguments of ``comprl export``, and the order of its work."""

import argparse
import json
import shutil
import sys
from pathlib import Path

ROLES = ("actor", "extractor")


def add_parser(commands: argparse._SubParsersAction) -> None:
    """Add the sub-command."""
    parser = commands.add_parser(
        "export",
        help="write a checkpoint's models in Hugging Face format",
        description="Write actor, extractor and bank of a checkpoint to a folder: the models in Hugging Face format "
        "(bfloat16; LoRA weights apart, as an adapter) with a model card each, the bank as a snapshot. A checkpoint's "
        "files are Python pickles: export only those that you trust.",
    )
    parser.add_argument("run_folder", type=Path, metavar="RUN", help="folder of a run, or RUN/global_step_N")
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="folder to write; must be empty")
    parser.add_argument("--step", type=int, help="step of the checkpoint (default: the latest that has its models)")
    parser.add_argument("--only", choices=(*ROLES, "bank"), help="write this part alone")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Export and print what was written, as JSON.

    Raises:
        FileNotFoundError: If there is no such checkpoint, or it lacks the part.
        ValueError: If the output folder is not empty, or the checkpoint is of another engine.
    """
    from verl_comprl.cli.export.card import write_card
    from verl_comprl.cli.export.checkpoint import find_checkpoint
    from verl_comprl.cli.export.models import export_model

    output = options.output.absolute()
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise ValueError(f"--output {options.output} must be a folder that is empty or does not exist")
    checkpoint = find_checkpoint(options.run_folder, options.step)
    parts = checkpoint.parts([options.only] if options.only else [*ROLES, "bank"])
    if checkpoint.removed_models_note and not options.only:
        print(f"note: {checkpoint.removed_models_note}", file=sys.stderr)
    # Complete or not at all: half a model would be loaded as one with random weights.
    scratch = output.with_name(f".{output.name}.part")
    shutil.rmtree(scratch, ignore_errors=True)
    try:
        for name, source in parts.items():
            if name == "bank":
                shutil.copytree(source, scratch / name)
            else:
                adapter = export_model(source, scratch / name)
                write_card(scratch / name, checkpoint, name, adapter=adapter)
        if output.exists():
            output.rmdir()
        scratch.rename(output)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    print(json.dumps({"checkpoint": str(checkpoint.folder), "written": [str(output / name) for name in parts]}))
    return 0
