"""``gptd-rl compare``: write a page on the differences between agents, or between checkpoints of one training run."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gptd_rl.cli import inputs, options, outputs, terminal

if TYPE_CHECKING:
    from gptd_rl.evaluation.comparison import AgentComparison

EXAMPLES = """\
gptd-rl compare old.zip new.zip --env CartPole-v1
gptd-rl compare logs/rl_model_*_steps.zip --env CartPole-v1 --out checkpoints
gptd-rl compare a.zip b.zip --vecnormalize a.pkl b.pkl --env Pendulum-v1
gptd-rl compare logs --env CartPole-v1 --json > numbers.json"""

STEPS = re.compile(r"_(\d+)_steps$")  # in the names that Stable-Baselines3's CheckpointCallback gives
MODELS = (".zip", ".gptd")


def add(commands: Any) -> None:
    """Add the parser."""
    parser = commands.add_parser(
        "compare",
        help="compare agents, or checkpoints of one run, and write a page",
        description="Compare agents in one environment: values and returns from the same starts, the difference with\n"
        "its interval, the states where one is better, and what each relies on. Checkpoints are sorted by their\n"
        "steps. Write a page, index.html, and all numbers, comparison.json.\n\n" + options.TRUST,
        examples=EXAMPLES,
    )
    parser.add_argument(
        "agents",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="two agents or more: files of Stable-Baselines3 or of gptd-rl iterate, or folders of such files",
    )
    options.add_env(parser)
    parser.add_argument(
        "--vecnormalize",
        type=Path,
        nargs="+",
        default=[],
        metavar="FILE",
        help="statistics of VecNormalize, if the agent needs them (default none; one for all, or one for each agent)",
    )
    parser.add_argument("--stochastic", action="store_true", help="sample actions instead of taking the most likely")
    options.add_amount(parser, 5_000)
    parser.add_argument(
        "--n-starts", type=options.count, default=100, metavar="N", help="number of common start states (default: 100)"
    )
    parser.add_argument(
        "--n-states", type=options.count, default=80, metavar="N", help="number of states to compare at (default: 80)"
    )
    options.add_gamma(parser, otherwise="the first agent's")
    parser.add_argument(
        "--reference",
        metavar="NAME",
        help="name of the agent that others are compared with (default: the second of two, the best of more)",
    )
    options.add_seed(parser)
    options.add_out(parser, "the page (a folder)", "comparison")
    options.add_json(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Compare, write the page, and print a summary."""
    if args.n_starts < 2:
        raise terminal.CommandError("--n-starts must be 2 or more: an interval needs two start states")
    files = named_files(args.agents, args.vecnormalize)
    if args.reference is not None and args.reference not in files:
        raise terminal.CommandError(f"--reference must be one of {', '.join(files)}; got {args.reference}")
    with outputs.writing_folder(args.out), terminal.only_json(args.json):
        comparison = _compare(args, files)
        with outputs.saving(args.out):
            page = comparison.write(args.out, args.command_line)
    if args.json:
        terminal.print_json(comparison.as_json() | {"page": str(page)})
    else:
        from gptd_rl.report.comparison_summary import summary

        terminal.show(summary(comparison), f"page: {page}")
    return 0 if comparison.is_complete else terminal.INTERRUPTED


def named_files(paths: Sequence[Path], statistics: Sequence[Path] = ()) -> dict[str, tuple[Path, Path | None]]:
    """Files of agents by name, each with its statistics; checkpoints in the order of their steps.

    Parameters
    ----------
    paths : sequence of Path
        Files, or folders of files.
    statistics : sequence of Path
        None, one for all, or one for each file.
    """
    found = [file for path in paths for file in (_models_in(path) if path.is_dir() else [path])]
    if len(found) < 2:
        one = f"got {found[0]} alone" if found else "got none"
        raise terminal.CommandError(f"compare needs two agents or more: {one}")
    if len(statistics) not in (0, 1, len(found)):
        raise terminal.CommandError(
            f"--vecnormalize needs one file for all agents or one for each of {len(found)}, got {len(statistics)}"
        )
    own = list(statistics) if len(statistics) == len(found) else [*statistics, None][:1] * len(found)
    pairs = list(zip(found, own, strict=True))
    steps = [STEPS.search(file.stem) for file in found]
    if all(steps):
        pairs = [pair for _, pair in sorted(zip(map(_number, steps), pairs, strict=True), key=lambda item: item[0])]
    return dict(zip(_names([file for file, _ in pairs]), pairs, strict=True))


def _models_in(folder: Path) -> list[Path]:
    """The agents in a folder, in alphabetical order."""
    found = sorted(path for path in folder.iterdir() if path.suffix in MODELS and path.is_file())
    if not found:
        raise terminal.CommandError(f"there is no agent in the folder {folder}: expected files that end in .zip")
    return found


def _number(match: re.Match[str] | None) -> int:
    return int(match[1]) if match else 0


def _names(files: Sequence[Path]) -> list[str]:
    """Names of the files without what is common: the steps of one run, the stems, or with their folders."""
    steps = [STEPS.search(file.stem) for file in files]
    runs = {file.with_name(STEPS.sub("", file.stem)) for file in files}
    if all(steps) and len(runs) == 1:
        names = [f"{_number(match)} steps" for match in steps]
    else:
        names = [file.stem for file in files]
    if len(set(names)) < len(names):
        names = [f"{file.parent.name}/{file.stem}" for file in files]
    seen: dict[str, int] = {}
    for name in names:
        seen[name] = seen.get(name, 0) + 1
    # The same file twice
    return [f"{name} ({names[: i + 1].count(name)})" if seen[name] > 1 else name for i, name in enumerate(names)]


def _compare(args: argparse.Namespace, files: dict[str, tuple[Path, Path | None]]) -> AgentComparison:
    from gptd_rl.evaluation.compare import compare_agents
    from gptd_rl.exceptions import AgentError
    from gptd_rl.progress import stage_bars

    with closing(inputs.make_env(args)) as env:
        agents = {}
        for name, (file, statistics) in files.items():
            own = argparse.Namespace(**vars(args) | {"vecnormalize": statistics})
            with terminal.as_command_error(terminal.CommandError, prefix=f"{file}: "):
                agents[name] = inputs.load_policy(file, env, own)
        with (
            stage_bars("agents", "states") as bars,
            terminal.as_command_error(ValueError, code=terminal.FAILED),
            terminal.as_command_error(AgentError),
            inputs.collection_errors(),
        ):
            return compare_agents(
                agents,
                env if args.env_kwargs else args.env,
                n_transitions=args.n_transitions,
                n_starts=args.n_starts,
                n_states=args.n_states,
                gamma=args.gamma,
                deterministic=not args.stochastic,
                seed=args.seed,
                reference=args.reference,
                progress=bars.advanced,
            )
