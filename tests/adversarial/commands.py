"""The command line: bad files, arguments and folders end in one line and an exit code, and nothing is written."""

from __future__ import annotations

import io
import shutil
from contextlib import chdir, nullcontext, redirect_stderr, redirect_stdout
from pathlib import Path

import numpy as np

from gptd_rl import GPTD
from gptd_rl.agents import PolicyIteration
from gptd_rl.cli.main import main
from tests.adversarial.disks import read_only
from tests.adversarial.harness import Attack, Category, pick
from tests.adversarial.own_files import BYTES
from tests.estimators.test_edited_files import DATA, QUICK
from tests.sb3.test_loading import make

GRID = "gptd_rl/LatentGridworld-v0"
TEXTS = [
    *("", " ", "-1", "0", "1", "2", "0.5", "1.5", "1e400", "nan", "inf", "-", "--", "--help-me", "x", "\x1b[31m"),
    *("a\nb", "é" * 300, "9" * 30, "9" * 5000, "1_0", "0x10", "²", "None", "[]", "..", ".", "~", "a/b/c/d", "*"),
    *("CartPole-v1", "CartPole-v99", "nowhere:Env-v0", ":", "gptd_rl/", "a=b", "=", "render_mode=3", "n=[1"),
    *("n=" + "(" * 300, "-1 2", "--json", "--out", "--seed", "-h=1", "x.png", "x.tiff", "x.gptd", "a" * 300 + ".png"),
]  # fmt: skip
# Options by command; what follows is a good value, or None for a switch.
OPTIONS: dict[str, dict[str, str | None]] = {
    "collect": {"--env": GRID, "--n-transitions": "20", "--gamma": "0.9", "--seed": "0", "--out": "OUT/data.npz"},
    "evaluate": {"--env": GRID, "--agent": "SB3", "--n-transitions": "20", "--out": "OUT/page", "--json": None},
    "iterate": {"--env": GRID, "--n-transitions": "20", "--out": "OUT/agent.gptd", "--model": "none", "--seed": "0"},
    "plot": {"": "DATA", "--out": "OUT/picture.png"},
}
EXTRA = [
    *("--env-kwargs", "--algo", "--vecnormalize", "--stochastic", "--target", "--candidates", "--inputs", "--strange"),
    *("--n-episodes", "--agent", "--json", "--gamma", "--help-me"),
]
FILES = ("SB3", "AGENT", "DATA", "MODEL", "DAMAGED", "FOLDER", "NOWHERE", "EMPTY")


def called(arguments: list[str]) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of the command; what else it raises is a failure."""
    out, error = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(error):
        try:
            code = main(arguments)
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else 1
    return code, out.getvalue(), error.getvalue()


def command_line(rng: np.random.Generator) -> list[str]:
    """A good command line with one to three changes, at least one of which is bad, mostly."""
    command = pick(rng, ["collect", "evaluate", "evaluate", "iterate", "plot", "plot"])
    options: list[tuple[str, str | None]] = list(OPTIONS[command].items())
    for _ in range(rng.integers(1, 4)):
        i = int(rng.integers(len(options)))
        kind = rng.random()
        if kind < 0.1:
            del options[i]
        elif kind < 0.3:
            options.append((pick(rng, EXTRA), pick(rng, [*TEXTS, *FILES, None])))
        elif kind < 0.6 and any(name in ("", "--agent") for name, _ in options):
            i = next(k for k, (name, _) in enumerate(options) if name in ("", "--agent"))
            options[i] = options[i][0], pick(rng, FILES)
        else:
            options[i] = options[i][0], pick(rng, [*TEXTS, *FILES])
        if not options:
            break
    if command == "evaluate" and rng.random() < 0.99:  # a whole evaluation takes seconds
        options.append(("--agent", pick(rng, FILES[2:])))
    words = [command] if rng.random() < 0.97 else [pick(rng, TEXTS)]
    for name, value in options:
        words += [word for word in (name, value) if word is not None and (word or name)]
    return words


def prepare(folder: Path) -> Attack:
    make("PPO", env=GRID).save(folder / "ppo")
    files = dict(
        SB3=folder / "ppo.zip",
        AGENT=PolicyIteration(GRID, seed=0, model=None).learn(60).save(folder / "agent"),
        DATA=DATA.save(folder / "data.npz"),
        MODEL=GPTD("isotropic", **QUICK).fit(DATA).save(folder / "model"),
        DAMAGED=folder / "damaged",
        FOLDER=folder,
        NOWHERE=folder / "nowhere",
        EMPTY=folder / "empty",
    )
    files["EMPTY"].touch()

    def attack(rng: np.random.Generator) -> str | None:
        own, closed = folder / "own", rng.random() < 0.1
        shutil.rmtree(own, ignore_errors=True)
        (own / "here").mkdir(parents=True)
        whole = files[pick(rng, ["SB3", "AGENT", "DATA", "MODEL"])]
        files["DAMAGED"].write_bytes(pick(rng, BYTES)(whole.read_bytes(), rng))
        words = [placed(word, files, own) for word in command_line(rng)]
        with chdir(own / "here"), read_only(own) if closed else nullcontext():
            code, out, error = called(words)
        return complaint_about(words, code, out, error, own)

    return attack


def placed(word: str, files: dict[str, Path], own: Path) -> str:
    """A word with its file or folder; results go nowhere else, wherever a relative path points."""
    if word in files:
        return str(files[word])
    return str(own / word[4:]) if word.startswith("OUT/") else word


def complaint_about(words: list[str], code: int, out: str, error: str, own: Path) -> str | None:
    """What is wrong with the end of a command."""
    said = f"{words}: exit code {code}, {out!r:.200}, {error!r:.300}"
    lines = [line for line in error.split("\n")[:-1] if not line.startswith("gptd-rl: warning: ")]
    left = sorted(str(path.relative_to(own)) for path in own.rglob("*") if path != own / "here")
    if "Traceback" in error or "\x1b" in error:
        return f"a traceback or an escape sequence: {said}"
    if code == 0:
        return None
    if code not in (1, 2) or len(lines) != 1 or not lines[0].startswith("gptd-rl"):
        return f"not one line: {said}"
    return f"it left {left}: {said}" if left else None


CATEGORY = Category("command line", prepare, 0.03)
