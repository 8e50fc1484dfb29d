"""The reference of the command line, from its parser."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from gptd_rl.cli.main import parser


def page() -> str:
    """All commands, as Markdown."""
    top = parser()
    (commands,) = (action for action in top._actions if isinstance(action, argparse._SubParsersAction))
    helps = {choice.dest: choice.help for choice in commands._choices_actions}
    lines = ["| command | what it does |", "|---|---|"]
    lines += [f"| [`gptd-rl {name}`](#gptd-rl-{name}) | {helps[name]} |" for name in commands.choices]
    for name, command in commands.choices.items():
        lines += ["", f"(gptd-rl-{name})=", "", f"## gptd-rl {name}", "", *_command(command)]
    return "\n".join(lines) + "\n"


def _command(command: argparse.ArgumentParser) -> Iterator[str]:
    usage = " ".join(command.format_usage().removeprefix("usage: ").split())
    yield from (_escaped(command.description or ""), "", "```text", *_wrapped(usage), "```", "")
    yield from ("| option | meaning |", "|---|---|")
    for action in command._actions:
        if action.help == argparse.SUPPRESS or isinstance(action, argparse._HelpAction):
            continue
        text = (action.help or "") % (vars(action) | {"prog": command.prog})
        needed = " **(required)**" if action.required else ""
        yield f"| {_names(action)} | {_escaped(text)}{needed} |"
    if command.epilog:
        examples = command.epilog.removeprefix("examples:\n").splitlines()
        yield from ("", "Examples:", "", "```console", *(f"$ {line.strip()}" for line in examples), "```")


def _names(action: argparse.Action) -> str:
    value = ""
    if action.nargs != 0:
        choices = action.choices
        value = " " + str(
            action.metavar or ("{" + ",".join(map(str, choices)) + "}" if choices else action.dest.upper())
        )
    if not action.option_strings:
        return f"`{value.strip()}`"
    return "<br>".join(f"`{name}{value}`" for name in action.option_strings).replace("|", "\\|")


def _wrapped(text: str, width: int = 90) -> Iterator[str]:
    """Lines of a usage message, broken between options."""
    line = ""
    for word in text.replace(" [", "\n[").replace(" --", "\n--").split("\n"):
        if line and len(line) + 1 + len(word) > width:
            yield line
            line = "        " + word
        else:
            line = f"{line} {word}".strip() if not line.startswith(" ") else f"{line} {word}"
    yield line


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*").replace("_", "\\_")
