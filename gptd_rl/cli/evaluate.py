"""``gptd-rl evaluate``: write a page on the value of an agent, with error bars."""

from __future__ import annotations

import argparse
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gptd_rl.cli import inputs, options, outputs, terminal

if TYPE_CHECKING:
    from gptd_rl.evaluation.results import Evaluation

EXAMPLES = """\
gptd-rl evaluate --agent model.zip --env CartPole-v1
gptd-rl evaluate --agent model.zip --vecnormalize stats.pkl --env Pendulum-v1 --out page
gptd-rl evaluate --agent model.zip --env CartPole-v1 --json > numbers.json
gptd-rl evaluate --zoo logs/ppo/LunarLander-v3_1
gptd-rl evaluate --agent old.zip --target new.zip --env Acrobot-v1 --stochastic"""


def add(commands: Any) -> None:
    """Add the parser."""
    parser = commands.add_parser(
        "evaluate",
        help="evaluate an agent with error bars, and write a page",
        description="Collect transitions of a trained agent, fit its value function with error bars, check both on\n"
        "fresh episodes, and write a page, index.html, and all numbers, evaluation.json.\n\n" + options.TRUST,
        examples=EXAMPLES,
    )
    options.add_env(parser, otherwise="that of --zoo")
    options.add_agent(parser, otherwise="that of --zoo")
    parser.add_argument(
        "--zoo",
        type=Path,
        metavar="FOLDER",
        help="a folder of rl-zoo, such as logs/ppo/CartPole-v1_1: agent, environment, wrappers and normalization",
    )
    parser.add_argument(
        "--target",
        type=Path,
        metavar="FILE",
        help="evaluate this agent instead, from data of --agent (off-policy); --vecnormalize is for both",
    )
    options.add_amount(parser, 10_000)
    options.add_gamma(parser, otherwise="the agent's")
    options.add_seed(parser)
    parser.add_argument(
        "--no-frames",
        action="store_true",
        help="draw no pictures of episodes; the page shows their values all the same",
    )
    options.add_out(parser, "the page (a folder)", "evaluation")
    options.add_json(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Evaluate, write the page, and print a summary."""
    _check(args)
    with outputs.writing_folder(args.out), terminal.only_json(args.json):
        evaluation = _evaluate(args)
        with outputs.saving(args.out):
            page = evaluation.write(args.out, args.command_line)
    if args.json:
        terminal.print_json(evaluation.as_json() | {"page": str(page)})
        return 0
    from gptd_rl.report.summary import summary

    terminal.show(summary(evaluation), f"page: {page}")
    return 0


def _check(args: argparse.Namespace) -> None:
    """Refuse options that do not go together."""
    if args.zoo is None and (args.agent is None or args.env is None):
        missing = "--agent" if args.agent is None else "--env"
        raise terminal.CommandError(f"{missing} is missing: give --agent and --env, or --zoo.", terminal.BAD_ARGUMENTS)
    if args.zoo is not None and (args.agent is not None or args.vecnormalize is not None):
        raise terminal.CommandError("--zoo brings its own --agent and --vecnormalize.", terminal.BAD_ARGUMENTS)


def _evaluate(args: argparse.Namespace) -> Evaluation:
    from gptd_rl.evaluation.evaluate import evaluate_agent
    from gptd_rl.exceptions import AgentError
    from gptd_rl.progress import stage_bars

    with (
        terminal.as_command_error(ValueError, code=terminal.FAILED),
        terminal.as_command_error(AgentError),
        inputs.collection_errors(),
    ):
        zoo = None if args.zoo is None else inputs.load_zoo(args)
        with closing(inputs.make_env(args) if zoo is None else zoo.make_env()) as env:
            policy = inputs.load_policy(args.agent, env, args, args.algo) if zoo is None else zoo.policy
            target = None if args.target is None else inputs.load_policy(args.target, env, args)
        with stage_bars("collect", "fit", "check", "record") as bars:
            return evaluate_agent(
                policy,
                args.env if zoo is None else zoo.make_env,
                env_kwargs=dict(args.env_kwargs) if zoo is None else None,
                n_transitions=args.n_transitions,
                gamma=args.gamma,
                deterministic=not args.stochastic,
                seed=args.seed,
                target=target,
                frames=not args.no_frames,
                progress=bars.advanced,
            )
