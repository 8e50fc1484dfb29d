"""``gptd-rl iterate``: learn a policy by policy iteration, and write the agent to a file."""

from __future__ import annotations

import argparse
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gptd_rl.cli import inputs, options, outputs, terminal

if TYPE_CHECKING:
    from gptd_rl.agents import PolicyIteration

EXAMPLES = """\
gptd-rl iterate --env Acrobot-v1 --n-transitions 1000 --out acrobot.gptd
gptd-rl iterate --env Pendulum-v1 --candidates -2 -1 0 1 2 --out pendulum.gptd
gptd-rl iterate --env CartPole-v1 --model none --out cartpole.gptd
gptd-rl evaluate --agent acrobot.gptd --env Acrobot-v1"""

MODELS = ("gp", "none")


def add(commands: Any) -> None:
    """Add the parser."""
    parser = commands.add_parser(
        "iterate",
        help="learn a policy by policy iteration",
        description="Learn a policy by policy iteration with a Gaussian process Q-function. Write the agent to a\n"
        "file, and plots of the learning run to a picture with the same name, ending in .png.",
        examples=EXAMPLES,
    )
    options.add_env(parser)
    options.add_amount(parser, 5_000)
    options.add_gamma(parser, 0.99)
    options.add_seed(parser)
    parser.add_argument(
        "--candidates",
        type=float,
        nargs="+",
        metavar="X",
        help="candidate actions for continuous action spaces; the numbers of one action after those of another",
    )
    parser.add_argument(
        "--model",
        choices=MODELS,
        default="gp",
        help="plan in a Gaussian process model of the dynamics, or learn from real transitions alone (default: gp)",
    )
    options.add_out(parser, "the agent (a file)")
    options.add_json(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Learn, write agent and picture, and print the results."""
    with outputs.writing_file(args.out), terminal.only_json(args.json):
        picture = args.out.with_suffix(".png")
        if picture == args.out:
            raise terminal.CommandError(f"{picture} is for the picture: choose another name, such as agent.gptd")
        with outputs.writing_file(picture), closing(inputs.make_env(args)) as env:
            agent = _learn(args, env)
        figure = agent.plot_history()
        with outputs.saving(args.out):
            agent.save(args.out)
            outputs.save_picture(figure, picture)
    found = results(agent, args.out, picture)
    if args.json:
        terminal.print_json(found)
    else:
        _print(found)
    return 0


def _learn(args: argparse.Namespace, env: Any) -> PolicyIteration:
    from gptd_rl.agents import PolicyIteration
    from gptd_rl.exceptions import LearningError

    with terminal.as_command_error(ValueError):
        candidates = None if args.candidates is None else _actions(args.candidates, env.action_space.shape)
        model = None if args.model == "none" else args.model
        agent = PolicyIteration(env, gamma=args.gamma, seed=args.seed, candidates=candidates, model=model)
    try:
        agent.learn(args.n_transitions, progress_bar=terminal.shows_progress(args))
    except LearningError as error:  # its last sentence is about saving the agent in Python
        raise terminal.CommandError(str(error).partition(" What was learnt")[0], terminal.FAILED) from error
    return agent


def _actions(numbers: list[float], shape: tuple[int, ...] | None) -> Any:
    """Candidate actions of shape (n, *shape) from a list of numbers."""
    import numpy as np

    width = int(np.prod(shape or ()))
    if len(numbers) % width:
        raise ValueError(f"an action has {width} numbers: {len(numbers)} is not a multiple of it.")
    return np.reshape(numbers, (-1, *(shape or ())))


def results(agent: PolicyIteration, path: Path, picture: Path) -> dict[str, Any]:
    """Results for JSON."""
    returns = agent.incumbent_returns
    return dict(
        agent=str(path),
        picture=str(picture),
        n_transitions=agent.num_timesteps,
        n_episodes=len(agent.episodes),
        incumbent_return=float(returns.mean()) if len(returns) else None,
        n_incumbent_episodes=len(returns),
        served=agent.served_.reason,
        relevances=agent.relevances_.tolist(),
        scaled_relevances=(agent.relevances_ * agent.data.states.var(axis=0)).tolist(),
    )


def _print(found: dict[str, Any]) -> None:
    from rich.table import Table
    from rich.text import Text

    from gptd_rl.report.numbers import count, number
    from gptd_rl.report.summary import most_relevant

    n, mean = found["n_incumbent_episodes"], found["incumbent_return"]
    measured = "no complete episode" if mean is None else f"{number(mean)} over {count(n, 'episode')}"
    names = [f"input {i}" for i in range(len(found["scaled_relevances"]))]
    table = Table.grid(padding=(0, 2))
    for name, text in (
        ("steps", f"{found['n_transitions']}, in {count(found['n_episodes'], 'episode')}"),
        ("return of the incumbent policy", f"{measured} since its selection"),
        ("why it is served", found["served"]),
        ("scaled relevances", most_relevant(names, found["scaled_relevances"])),
    ):
        table.add_row(Text(name, style="dim"), Text(text))
    terminal.show(table, f"agent: {found['agent']}", f"picture: {found['picture']}")
