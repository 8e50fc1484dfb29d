"""``gptd-rl iterate``: an agent that learns by policy iteration, in a file."""

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
gptd-rl evaluate --agent acrobot.gptd --env Acrobot-v1"""


def add(commands: Any) -> None:
    """Add the parser."""
    parser = commands.add_parser(
        "iterate",
        help="learn to act by policy iteration",
        description="Learn to act by policy iteration with a Gaussian-process Q-function; write the agent to a file,\n"
        "and a picture of how it learnt beside it, of the same name but ending in .png.",
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
        help="actions to choose from where they are continuous; of several numbers each, one action after the other",
    )
    options.add_out(parser, "the agent, a file")
    options.add_json(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Learn, write agent and picture, and print what came out."""
    with outputs.writing_file(args.out), terminal.only_json(args.json):
        picture = args.out.with_suffix(".png")
        if picture == args.out:
            raise terminal.Refusal(f"{picture} is for the picture: name the agent otherwise, such as agent.gptd")
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

    with terminal.refusing(ValueError):
        candidates = None if args.candidates is None else _actions(args.candidates, env.action_space.shape)
        agent = PolicyIteration(env, gamma=args.gamma, seed=args.seed, candidates=candidates)
    try:
        agent.learn(args.n_transitions, progress_bar=terminal.is_watched(args))
    except LearningError as error:  # it ends with how to save what was learnt, which nobody here can
        raise terminal.Refusal(str(error).partition(" What was learnt")[0], terminal.FAILED) from error
    return agent


def _actions(numbers: list[float], shape: tuple[int, ...] | None) -> Any:
    """Candidates as a row of numbers, of shape (n, *shape)."""
    import numpy as np

    width = int(np.prod(shape or ()))
    if len(numbers) % width:
        raise ValueError(f"an action has {width} numbers: {len(numbers)} candidates cannot be shared out evenly.")
    return np.reshape(numbers, (-1, *(shape or ())))


def results(agent: PolicyIteration, path: Path, picture: Path) -> dict[str, Any]:
    """What came out, as JSON holds it."""
    returns = agent.served_returns
    return dict(
        agent=str(path),
        picture=str(picture),
        n_transitions=agent.num_timesteps,
        n_episodes=len(agent.episodes),
        served_return=float(returns.mean()) if len(returns) else None,
        n_served=len(returns),
        relevances=agent.relevances_.tolist(),
        strengths=(agent.relevances_ * agent.data.states.var(axis=0)).tolist(),
    )


def _print(found: dict[str, Any]) -> None:
    from rich.table import Table
    from rich.text import Text

    from gptd_rl.report.summary import episodes, number, strongest

    served = (
        "no whole episode since it was chosen"
        if found["served_return"] is None
        else f"{number(found['served_return'])} over {episodes(found['n_served'])} since it was chosen"
    )
    names = [f"input {i}" for i in range(len(found["strengths"]))]
    table = Table.grid(padding=(0, 2))
    for name, text in (
        ("steps", f"{found['n_transitions']}, in {episodes(found['n_episodes'])}"),
        ("return of the policy served", served),
        ("what matters", strongest(names, found["strengths"])),
    ):
        table.add_row(Text(name, style="dim"), Text(text))
    terminal.show(table, f"agent: {found['agent']}", f"picture: {found['picture']}")
