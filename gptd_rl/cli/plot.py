"""``gptd-rl plot``: draw a value function, from a fitted model or from transitions."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gptd_rl.cli import options, outputs, terminal

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from gptd_rl.estimators.gptd import GPTD

EXAMPLES = """\
gptd-rl plot v.gptd --out v.png
gptd-rl plot data.npz --inputs 0 2"""


def add(commands: Any) -> None:
    """Add the parser."""
    parser = commands.add_parser(
        "plot",
        help="draw a value function, its uncertainty and its relevances",
        description="Draw a value function, its standard deviation and the relevances of its inputs.",
        examples=EXAMPLES,
    )
    parser.add_argument(
        "file", type=Path, metavar="FILE", help="model written by GPTD.save, or transitions of gptd-rl collect"
    )
    parser.add_argument(
        "--inputs",
        type=options.seed,
        nargs=2,
        metavar=("I", "J"),
        help="inputs along the axes, counted from 0 (default: the two most relevant ones)",
    )
    options.add_out(parser, "the picture (a file)", otherwise="FILE, ending in .png")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Read, fit if necessary, draw."""
    if not args.file.is_file():
        raise terminal.CommandError(f"there is no file {args.file}")
    out = args.file.with_suffix(".png") if args.out is None else args.out
    outputs.check_picture(out)
    if out.resolve() == args.file.resolve():
        raise terminal.CommandError(f"{out} is the input file: choose another name for the picture")
    with outputs.writing_file(out):
        v = _read(args.file, args.inputs)
        figure = draw(v, args.inputs)
        with outputs.saving(out):
            outputs.save_picture(figure, out)
    terminal.show(f"picture: {out}")
    return 0


def _read(path: Path, inputs: list[int] | None) -> GPTD:
    """The model in a file, or a model fitted to the trajectories in it."""
    from gptd_rl.data import files
    from gptd_rl.data.trajectories import Trajectories
    from gptd_rl.estimators.gptd import GPTD
    from gptd_rl.estimators.storage import load

    with terminal.as_command_error(OSError, ValueError):
        try:
            is_model = "header" in files.read(path)
        except files.UNREADABLE as error:
            raise terminal.CommandError(
                f"{path} contains neither a model nor transitions of gptd-rl: {error}"
            ) from error
        found = load(path) if is_model else Trajectories.load(path)
        if isinstance(found, Trajectories):
            _check_inputs(inputs, found.n_dims)
            terminal.show(f"{path} contains {found.n_transitions} transitions: fitting GPTD()")
            return GPTD().fit(found, progress_bar=terminal.shows_progress(None))
        if not isinstance(found, GPTD):
            raise terminal.CommandError(f"{path} contains a {type(found).__name__}: only GPTD models can be drawn")
        _check_inputs(inputs, found.data_.n_dims)
        return found


def _check_inputs(inputs: list[int] | None, n_dims: int) -> None:
    if inputs is None:
        return
    if len(set(inputs)) < 2 or max(inputs) >= n_dims:
        raise terminal.CommandError(
            f"--inputs must be two different numbers from 0 to {n_dims - 1}, got {inputs[0]} {inputs[1]}"
        )


def draw(v: GPTD, inputs: list[int] | None = None) -> Figure:
    """Value function, standard deviation and relevances; with a single input, a section and its relevance."""
    import numpy as np
    from matplotlib.figure import Figure

    from gptd_rl.report.plots import plot_relevances, plot_section, plot_value

    one = v.data_.n_dims == 1
    figure = Figure(figsize=(9 if one else 13, 3.6), layout="constrained")
    *maps, last = figure.subplots(1, 2 if one else 3)
    if one:
        plot_section(v, ax=maps[0]).set(title="value function with 95 % interval")
    else:
        scaled = v.relevances_ * v.data_.states.var(axis=0)
        chosen = sorted(np.argsort(-scaled, kind="stable")[:2].tolist()) if inputs is None else inputs
        plot_value(v, (chosen[0], chosen[1]), ax=maps[0]).set(title="value function and visited states")
        plot_value(v, (chosen[0], chosen[1]), std=True, ax=maps[1]).set(title="standard deviation")
    plot_relevances(v, ax=last).set(title="relevances")
    return figure
