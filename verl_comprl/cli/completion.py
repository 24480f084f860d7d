"""Command ``comprl completion``: prints what makes a shell complete commands, options and names (argcomplete)."""

import argparse

SHELLS = ("bash", "zsh", "fish", "powershell")


def add_parser(commands: argparse._SubParsersAction) -> None:
    """Add the sub-command."""
    parser = commands.add_parser(
        "completion",
        help="print the shell's completion of comprl",
        description='Print the completion of comprl for a shell; in ~/.bashrc: eval "$(comprl completion bash)".',
    )
    parser.add_argument("shell", choices=SHELLS)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the shell's code."""
    from argcomplete.shell_integration import shellcode

    print(shellcode(["comprl"], shell=options.shell))
    return 0


def complete(parser: argparse.ArgumentParser) -> None:
    """Answer the shell and end the process."""
    from argcomplete import autocomplete

    autocomplete(parser)
