"""``gptd-rl collect``: write transitions of an agent, or of random actions, to a file."""

from __future__ import annotations

import argparse
from contextlib import closing
from typing import Any

from gptd_rl.cli import inputs, options, outputs, terminal

EXAMPLES = """\
gptd-rl collect --env CartPole-v1 --n-episodes 20 --gamma 0.99 --out random.npz
gptd-rl collect --env CartPole-v1 --agent model.zip --n-transitions 10000 --gamma 0.99 --out data.npz
gptd-rl plot data.npz"""


def add(commands: Any) -> None:
    """Add the parser."""
    parser = commands.add_parser(
        "collect",
        help="write transitions of an agent to a file",
        description="Collect transitions of an agent, or of random actions, and write them to a file (NumPy's npz).\n\n"
        + options.TRUST,
        examples=EXAMPLES,
    )
    options.add_env(parser)
    options.add_agent(parser, otherwise="random actions")
    amount = parser.add_mutually_exclusive_group(required=True)
    options.add_amount(amount)
    amount.add_argument("--n-episodes", type=options.count, metavar="N", help="number of complete episodes")
    options.add_gamma(parser)
    options.add_seed(parser)
    options.add_out(parser, "the transitions (a file)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Collect and write."""
    from gptd_rl.report.numbers import count
    from gptd_rl.rollouts.collect import collect
    from gptd_rl.rollouts.making import choose_n_envs

    with outputs.writing_file(args.out):
        with closing(inputs.make_env(args)) as env:
            policy = None if args.agent is None else inputs.load_policy(args.agent, env, args, args.algo)
            n = choose_n_envs(args.n_transitions, args.n_episodes, env.spec.max_episode_steps)
        with closing(inputs.make_env(args, n)) as env, inputs.collection_errors():
            data = collect(
                env,
                policy,
                n_transitions=args.n_transitions,
                n_episodes=args.n_episodes,
                gamma=args.gamma,
                seed=args.seed,
                deterministic=not args.stochastic,
                progress_bar=terminal.shows_progress(args),
            )
        with outputs.saving(args.out):
            data.save(args.out)
    terminal.show(
        f"{args.out}: {count(data.n_transitions, 'transition')} with {count(data.n_dims, 'input')}, "
        f"{count(data.n_segments, 'episode')}, {int(data.terminated.sum())} of them terminated"
    )
    return 0
