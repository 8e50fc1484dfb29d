"""The command line: options shared by name, what is written and printed, and one line for all that goes wrong."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import io
import json
import subprocess
import sys
import types
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from rich.console import Console

import gptd_rl
from gptd_rl.agents import PolicyIteration
from gptd_rl.agents.reference.gridworld import TowardsMiddle
from gptd_rl.cli import collect, options, outputs, plot, terminal
from gptd_rl.cli.main import main, parser
from gptd_rl.evaluation import results
from gptd_rl.exceptions import AgentError, InterruptedFitWarning
from gptd_rl.report.summary import number, strongest, summary
from gptd_rl.sb3 import loading as archives

GRID = "gptd_rl/LatentGridworld-v0"
Capture = pytest.CaptureFixture[str]
COMMANDS = ("collect", "evaluate", "iterate", "plot", "reproduce")


def subparsers() -> dict[str, argparse.ArgumentParser]:
    (action,) = (a for a in parser()._actions if isinstance(a, argparse._SubParsersAction))
    return dict(action.choices)


def run(*arguments: object) -> int:
    """Exit code, whoever exits."""
    try:
        return main([str(argument) for argument in arguments])
    except SystemExit as stop:
        return int(stop.code or 0)


def complaint(capsys: Capture) -> str:
    """The one line on stderr; nothing is on stdout."""
    out, error = capsys.readouterr()
    assert out == "" and error.count("\n") == 1 and error.startswith("gptd-rl"), (out, error)
    return error


# Options and help


def test_the_commands():
    assert tuple(subparsers()) == COMMANDS


@pytest.mark.parametrize("command", [[], *([name] for name in COMMANDS)])
def test_help_says_what_it_does_and_ends_with_examples(command: list[str], capsys: Capture):
    assert run(*command, "--help") == 0
    text = capsys.readouterr().out
    examples = text.split("examples:\n")[1].splitlines()
    assert all(line.startswith("  gptd-rl ") for line in examples) and len(examples) >= 2
    assert max(map(len, text.splitlines())) <= 120


@pytest.mark.parametrize("name", COMMANDS)
def test_examples_are_understood(name: str):
    text = subparsers()[name].epilog or ""
    lines = [line.split(">")[0].split()[1:] for line in text.splitlines()[1:]]
    for line in lines:
        parser().parse_args(line)
    assert any(line[0] == name for line in lines)


def test_options_of_the_same_name_are_the_same():
    seen: dict[str, dict[str, argparse.Action]] = {}
    for command, sub in subparsers().items():
        for action in sub._actions:
            for option in action.option_strings:
                seen.setdefault(option, {})[command] = action
    shared = {option: list(where.values()) for option, where in seen.items() if len(where) > 1}
    assert {
        "--env",
        "--env-kwargs",
        "--agent",
        "--algo",
        "--vecnormalize",
        "--n-transitions",
        "--gamma",
        "--seed",
        "--stochastic",
        "--out",
        "--json",
    } <= shared.keys()
    for option, actions in shared.items():
        first, *others = actions
        for other in others:
            assert (other.metavar, other.type, other.nargs, type(other)) == (
                first.metavar,
                first.type,
                first.nargs,
                type(first),
            )
            words = [str(a.help).split(" (default")[0] for a in (first, other)]
            if option == "--out":
                assert all(text.startswith("where to write ") for text in words)
            else:
                assert words[0] == words[1]


def test_defaults():
    args = parser().parse_args(["evaluate", "--agent", "a.zip", "--env", "E-v0"])
    assert (args.n_transitions, args.gamma, args.seed, args.out) == (10_000, None, 0, Path("evaluation"))
    assert (args.stochastic, args.json, args.target, args.env_kwargs) == (False, False, None, [])
    args = parser().parse_args(["iterate", "--env", "E-v0", "--out", "a", "--candidates", "-2", "0.5"])
    assert (args.n_transitions, args.gamma, args.candidates) == (5_000, 0.99, [-2.0, 0.5])


@pytest.mark.parametrize("name", ["collect", "evaluate"])
def test_help_warns_of_files_that_run_code(name: str):
    text = " ".join(str(subparsers()[name].description).split())
    assert "run code when they are loaded: use only those you trust." in text


@pytest.mark.parametrize(
    ("text", "pair"),
    [
        ("g=9.81", ("g", 9.81)),
        ("sutton=True", ("sutton", True)),
        ("mode=rgb", ("mode", "rgb")),
        ("size=(3, 4)", ("size", (3, 4))),
        ("name=", ("name", "")),
        ("sum=a=b", ("sum", "a=b")),
    ],
)
def test_key_value(text: str, pair: tuple[str, Any]):
    assert options.key_value(text) == pair


def test_help_needs_no_slow_import():
    slow = ["matplotlib", "rich", "torch", "stable_baselines3"]
    code = f"import sys, gptd_rl.cli.main as c; c.parser(); print(*sorted(set({slow}) & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


# Bad arguments

COLLECT = ["collect", "--env", GRID, "--gamma", "0.9", "--out", "OUT"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "required: COMMAND"),
        (["collct"], "invalid choice: 'collct'"),
        (COLLECT, "one of the arguments --n-transitions --n-episodes is required"),
        ([*COLLECT, "--n-transitions", "5", "--n-episodes", "1"], "not allowed with"),
        ([*COLLECT, "--n-transitions", "0"], "expected a whole number of 1 or more, got '0'"),
        ([*COLLECT, "--n-transitions", "1.5"], "expected a whole number of 1 or more"),
        ([*COLLECT, "--n-episodes", "1", "--seed", "-1"], "expected a whole number of 0 or more, got '-1'"),
        ([*COLLECT, "--n-episodes", "1", "--gamma", "1.01"], "expected a number from 0 to 1, got '1.01'"),
        ([*COLLECT, "--n-episodes", "1", "--gamma", "nan"], "expected a number from 0 to 1"),
        ([*COLLECT, "--n-episodes", "1", "--gamma", "much"], "expected a number from 0 to 1"),
        ([*COLLECT, "--n-episodes", "1", "--env-kwargs", "size"], "expected KEY=VALUE, got 'size'"),
        ([*COLLECT, "--n-episodes", "1", "--env-kwargs", "1=2"], "expected KEY=VALUE"),
        ([*COLLECT, "--n-episodes", "1", "--stoch"], "unrecognized arguments: --stoch"),
        (["collect", "--env", GRID, "--n-episodes", "1", "--out", "OUT"], "required: --gamma"),
        (["evaluate", "--env", GRID, "--out", "OUT"], "required: --agent"),
        (["iterate", "--env", GRID], "required: --out"),
        (["plot"], "required: FILE"),
        (["plot", "FILE", "--inputs", "0"], "expected 2 arguments"),
        (["reproduce", "all", "--seed", "1", "--out", "OUT"], "unrecognized arguments: --seed"),
    ],
)
def test_wrong_arguments(arguments: list[str], words: str, tmp_path: Path, capsys: Capture):
    assert run(*(str(tmp_path / "out") if a == "OUT" else a for a in arguments)) == 2
    assert words in complaint(capsys)
    assert list(tmp_path.iterdir()) == []


BAD_ENVS = [
    ("Nothing-v0", "doesn't exist"),
    ("no id", "Malformed environment ID"),
    ("no_such_module:Env-v0", "No module named 'no_such_module'"),
    *(
        (env, "is not installed")
        for env, module in [("LunarLander-v3", "Box2D"), ("HalfCheetah-v5", "mujoco")]
        if importlib.util.find_spec(module) is None
    ),
]


@pytest.mark.parametrize("command", ["collect", "evaluate", "iterate"])
@pytest.mark.parametrize(("env", "words"), BAD_ENVS)
def test_environment_that_cannot_be_made(command: str, env: str, words: str, tmp_path: Path, capsys: Capture):
    more = {
        "collect": ["--n-episodes", 2, "--gamma", 0.9],
        "evaluate": ["--agent", tmp_path / "no.zip"],
        "iterate": [],
    }
    assert run(command, "--env", env, *more[command], "--out", tmp_path / "new" / "out") == 2
    said = complaint(capsys)
    assert said.startswith(f"gptd-rl: cannot make environment '{env}': ") and words in said
    assert list(tmp_path.iterdir()) == []


def test_arguments_the_environment_does_not_know(tmp_path: Path, capsys: Capture):
    out = tmp_path / "data.npz"
    assert run("collect", "--env", GRID, "--env-kwargs", "sise=4", "--n-episodes", 1, "--gamma", 1, "--out", out) == 2
    assert "sise" in complaint(capsys)


# Where to write


@pytest.fixture
def agent_file(tmp_path: Path) -> Path:
    """A file that `load_agent` would have to read: not a zip."""
    path = tmp_path / "agent.zip"
    path.write_text("no zip")
    return path


@pytest.mark.parametrize("below", ["file/below", "file/far/below"])
@pytest.mark.parametrize("command", ["collect", "evaluate", "iterate", "plot"])
def test_unwritable_path_is_told_before_any_work(
    command: str, below: str, agent_file: Path, tmp_path: Path, capsys: Capture, monkeypatch
):
    (tmp_path / "file").write_text("mine")
    monkeypatch.setattr(gym, "make", lambda *args, **kwargs: pytest.fail("there was work"))
    monkeypatch.setattr(gptd_rl, "load", lambda path: pytest.fail("there was work"))
    more: dict[str, list[object]] = {
        "collect": ["--env", GRID, "--n-episodes", 1, "--gamma", 0.9],
        "evaluate": ["--env", GRID, "--agent", agent_file],
        "iterate": ["--env", GRID],
        "plot": [agent_file],
    }
    assert (
        run(command, *more[command], "--out", tmp_path / f"{below}.png" if command == "plot" else tmp_path / below) == 2
    )
    assert "cannot write to" in complaint(capsys)
    assert (tmp_path / "file").read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["agent.zip", "file"]


def test_a_folder_is_no_file(tmp_path: Path, capsys: Capture):
    assert run("iterate", "--env", GRID, "--out", tmp_path) == 2
    assert complaint(capsys) == f"gptd-rl: cannot write to {tmp_path}: it is a folder\n"
    (tmp_path / "agent.png").mkdir()
    assert run("iterate", "--env", GRID, "--out", tmp_path / "agent.gptd") == 2
    assert "agent.png: it is a folder" in complaint(capsys)


def test_new_folders_go_away_after_an_error_only(tmp_path: Path):
    with outputs.writing_folder(tmp_path / "kept" / "new"):
        pass
    assert (tmp_path / "kept" / "new").is_dir()
    with pytest.raises(KeyboardInterrupt), outputs.writing_folder(tmp_path / "kept" / "other" / "new"):
        raise KeyboardInterrupt
    assert [path.name for path in (tmp_path / "kept").iterdir()] == ["new"]


def test_what_others_put_into_a_new_folder_stays(tmp_path: Path):
    with contextlib.suppress(KeyboardInterrupt), outputs.writing_folder(tmp_path / "full"):
        (tmp_path / "full" / "theirs").touch()
        raise KeyboardInterrupt
    assert (tmp_path / "full" / "theirs").exists()


def test_a_picture_is_whole_or_as_it_was(tmp_path: Path):
    class Broken:
        def savefig(self, path: Path, **options: Any) -> None:
            path.write_text("half")
            raise OSError(28, "No space left on device")

    (tmp_path / "a.png").write_text("before")
    with pytest.raises(OSError, match="No space"):
        outputs.save_picture(Broken(), tmp_path / "a.png")  # type: ignore[arg-type]
    assert [path.read_text() for path in tmp_path.iterdir()] == ["before"]


def test_a_full_disk_is_a_failure(tmp_path: Path, capsys: Capture, monkeypatch):
    def full(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(gptd_rl.Trajectories, "save", full)
    assert run("collect", "--env", GRID, "--n-episodes", 1, "--gamma", 0.9, "--out", tmp_path / "a" / "b.npz") == 1
    assert "No space left on device" in complaint(capsys)
    assert list(tmp_path.iterdir()) == []


# collect


def test_collect_random_episodes(tmp_path: Path, capsys: Capture):
    out = tmp_path / "new" / "data.npz"
    assert run("collect", "--env", GRID, "--n-episodes", 10, "--gamma", 0.9, "--seed", 3, "--out", out) == 0
    data = gptd_rl.Trajectories.load(out)
    assert data.n_segments == 10
    left = np.setdiff1d(np.arange(len(data)), data.last)
    assert set(data.discounts[left]) <= {0.9}
    said, error = capsys.readouterr()
    assert error == "" and said.count("\n") == 1
    assert f"{out}: {data.n_transitions} transitions with 2 inputs, from 10 episodes" in said
    again = tmp_path / "again.npz"
    assert run("collect", "--env", GRID, "--n-episodes", 10, "--gamma", 0.9, "--seed", 3, "--out", again) == 0
    np.testing.assert_array_equal(gptd_rl.Trajectories.load(again).states, data.states)
    assert run("collect", "--env", GRID, "--n-episodes", 10, "--gamma", 0.9, "--seed", 4, "--out", again) == 0
    assert not np.array_equal(gptd_rl.Trajectories.load(again).states[:20], data.states[:20])


def test_collect_transitions_in_an_environment_with_arguments(tmp_path: Path, capsys: Capture):
    out = tmp_path / "data.npz"
    kwargs = ["--env-kwargs", "max_episode_steps=7", "--env-kwargs", "g=1.0"]
    assert run("collect", "--env", "Pendulum-v1", *kwargs, "--n-transitions", 30, "--gamma", 1, "--out", out) == 0
    data = gptd_rl.Trajectories.load(out)
    assert data.n_transitions == 30 and max(data.lengths) == 8


@pytest.mark.parametrize(
    ("n_transitions", "n_episodes", "limit", "n"),
    [
        (None, 3, 500, 3),
        (None, 30, 500, 8),
        (999, None, 500, 1),
        (2000, None, 500, 2),
        (10_000, None, 200, 8),
        (5000, None, None, 2),
    ],
)
def test_number_of_environments(n_transitions: int | None, n_episodes: int | None, limit: int | None, n: int):
    assert collect.n_envs(n_transitions, n_episodes, limit) == n


class Stand:
    """A policy with the spaces of the gridworld, as `load_agent` might have read it."""

    gamma = 0.95

    def __init__(self) -> None:
        env = gym.make(GRID)
        self.observation_space, self.action_space = env.observation_space, env.action_space
        self.asked: list[bool] = []
        self.seeds: list[int] = []
        self.policy = TowardsMiddle()

    def set_random_seed(self, seed: int) -> None:
        self.seeds.append(seed)

    def predict(self, observation: Any, deterministic: bool = False) -> tuple[Any, None]:
        self.asked.append(deterministic)
        return self.policy.predict(observation)[0], None


@pytest.fixture
def stand(monkeypatch, agent_file: Path) -> Stand:
    """What the file `agent_file` holds."""
    made = Stand()

    def load_agent(path: Path, *, algo: str | None = None) -> Stand:
        assert path == agent_file and algo in (None, "PPO")
        return made

    monkeypatch.setattr(archives, "load_agent", load_agent)
    return made


@pytest.mark.parametrize("stochastic", [False, True])
def test_collect_with_an_agent(stand: Stand, stochastic: bool, agent_file: Path, tmp_path: Path):
    out = tmp_path / "data.npz"
    amount = ["--n-transitions", 50, "--gamma", 0.9, "--seed", 5, "--out", out]
    more = ["--stochastic"] if stochastic else []
    assert run("collect", "--env", GRID, "--agent", agent_file, "--algo", "PPO", *amount, *more) == 0
    assert set(stand.asked) == {not stochastic}
    assert stand.seeds == ([5] if stochastic else [])
    data = gptd_rl.Trajectories.load(out)
    assert data.terminated[:-1].all() and data.n_transitions == 50


def test_agent_of_another_environment(stand: Stand, agent_file: Path, tmp_path: Path, capsys: Capture):
    for command, more in (("collect", ["--n-episodes", 1, "--gamma", 0.9]), ("evaluate", [])):
        out = tmp_path / "new"
        assert run(command, "--env", "CartPole-v1", "--agent", agent_file, *more, "--out", out) == 2
        said = complaint(capsys)
        assert "the agent observes" in said and "CartPole-v1 gives Box(4,)" in said
        assert not out.exists()


@pytest.mark.parametrize(("name", "words"), [("agent.zip", "agent.zip is no"), ("none.zip", "there is no file")])
@pytest.mark.parametrize("command", ["collect", "evaluate"])
def test_agent_that_cannot_be_read(
    command: str, name: str, words: str, agent_file: Path, tmp_path: Path, capsys: Capture
):
    more = ["--n-episodes", 1, "--gamma", 0.9] if command == "collect" else []
    assert run(command, "--env", GRID, "--agent", tmp_path / name, *more, "--out", tmp_path / "new") == 2
    assert words in complaint(capsys)
    assert list(tmp_path.iterdir()) == [agent_file]


def test_agent_of_stable_baselines(tmp_path: Path, capsys: Capture):
    sb3 = pytest.importorskip("stable_baselines3")
    path = tmp_path / "a2c.zip"
    sb3.A2C("MlpPolicy", "CartPole-v1", device="cpu", seed=0).save(path)

    def states(*more: object) -> Any:
        out = tmp_path / "data.npz"
        amount = ["--n-transitions", 40, "--gamma", 0.9, "--out", out]
        assert run("collect", "--env", "CartPole-v1", "--agent", path, *amount, *more) == 0
        return gptd_rl.Trajectories.load(out).states

    np.testing.assert_array_equal(states("--stochastic"), states("--stochastic"))
    assert not np.array_equal(states("--stochastic"), states())
    capsys.readouterr()
    assert run("evaluate", "--env", "CartPole-v1", "--agent", path, "--algo", "dqn", "--out", tmp_path / "new") == 2
    assert "A2C" in complaint(capsys)


def test_statistics_stand_before_the_agent(stand: Stand, agent_file: Path, tmp_path: Path, monkeypatch):
    seen: list[Any] = []

    def normalised(model: Any, statistics: Any) -> Any:
        seen.append((model, statistics))
        return model

    monkeypatch.setattr(archives, "load_statistics", lambda path: f"what {path.name} holds")
    monkeypatch.setattr("gptd_rl.sb3.policies.NormalizedPolicy", normalised)
    more = ["--vecnormalize", "stats.pkl", "--n-episodes", 1, "--gamma", 0.9, "--out", tmp_path / "data.npz"]
    assert run("collect", "--env", GRID, "--agent", agent_file, *more) == 0
    assert seen == [(stand, "what stats.pkl holds")]


class Breaks(gym.Env[Any, Any]):
    """Works for `n` steps, then not."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (1,))
    action_space = gym.spaces.Discrete(2)

    def __init__(self, n: int = 3, image: bool = False) -> None:
        self.left = n
        if image:
            self.observation_space = gym.spaces.Box(0, 255, (64, 64, 3), np.uint8)  # type: ignore[arg-type]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(self.observation_space.shape or (), self.observation_space.dtype), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.left -= 1
        if self.left < 0:
            raise RuntimeError("the robot\nfell over")
        return np.full(1, 0.1 * (self.left % 7), np.float32), 1.0, self.left % 5 == 0, False, {}


@pytest.fixture
def breaks(tmp_path_factory: pytest.TempPathFactory, monkeypatch) -> Iterator[None]:
    """Have a module that registers `Breaks`."""
    folder = tmp_path_factory.mktemp("modules")
    monkeypatch.setattr(gym, "ours", Breaks, raising=False)
    text = "import gymnasium\ngymnasium.register('Breaks-v0', gymnasium.ours, disable_env_checker=True)\n"
    (folder / "robots.py").write_text(text)
    monkeypatch.syspath_prepend(folder)
    yield
    gym.registry.pop("Breaks-v0", None)
    sys.modules.pop("robots", None)


@pytest.mark.parametrize(
    ("kwargs", "code", "words"),
    [
        (["n=3"], 1, "RuntimeError: the robot fell over"),
        (["n=0"], 2, "RuntimeError: the robot fell over"),
        (["image=True"], 2, "image"),
    ],
)
@pytest.mark.usefixtures("breaks")
def test_environment_that_fails(kwargs: list[str], code: int, words: str, tmp_path: Path, capsys: Capture):
    more = ["--env-kwargs", *kwargs, "--n-transitions", 9, "--gamma", 0.9, "--out", tmp_path / "new" / "data.npz"]
    assert run("collect", "--env", "robots:Breaks-v0", *more) == code
    assert words in complaint(capsys)
    assert list(tmp_path.iterdir()) == []


# iterate


@pytest.fixture(scope="module")
def iterated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Agent that learnt in the gridworld, and what was printed beside it."""
    folder = tmp_path_factory.mktemp("iterate") / "new"
    with pytest.MonkeyPatch.context() as patch:
        shown: list[str] = []
        patch.setattr(sys.stdout, "write", shown.append)
        assert (
            run("iterate", "--env", GRID, "--n-transitions", 150, "--seed", 1, "--out", folder / "agent.gptd", "--json")
            == 0
        )
    (folder / "printed.json").write_text("".join(shown))
    return folder / "agent.gptd"


def test_iterate_writes_agent_picture_and_json(iterated: Path):
    agent = PolicyIteration.load(iterated)
    assert (agent.num_timesteps, agent.seed, agent.gamma) == (150, 1, 0.99)
    assert iterated.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    assert len(list(iterated.parent.iterdir())) == 3
    found = json.loads((iterated.parent / "printed.json").read_text())
    assert found["agent"] == str(iterated) and found["picture"] == str(iterated.with_suffix(".png"))
    assert found["n_transitions"] == 150 and found["n_episodes"] == len(agent.episodes)
    np.testing.assert_allclose(found["relevances"], agent.relevances_)
    served = agent.served_returns
    assert found["n_served"] == len(served)
    assert found["served_return"] == (pytest.approx(served.mean()) if len(served) else None)


def test_iterate_prints_a_table(tmp_path: Path, capsys: Capture):
    out = tmp_path / "a.gptd"
    more = ["--candidates", "-2", "0", "2", "--n-transitions", 60, "--gamma", 0.9]
    short = ["--env-kwargs", "max_episode_steps=20"]
    assert run("iterate", "--env", "Pendulum-v1", *short, *more, "--out", out) == 0
    said, error = capsys.readouterr()
    assert error == "" and "60, in 3 episodes" in said and "input 2" in said
    assert f"agent: {out}\npicture: {tmp_path / 'a.png'}\n" in said
    agent = PolicyIteration.load(out)
    assert agent.gamma == 0.9 and agent.candidates is not None and agent.candidates.shape == (3, 1)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--env", "Pendulum-v1", "--out", "a.gptd"], "is continuous: give candidates"),
        (["--env", "Pendulum-v1", "--candidates", "0", "9", "--out", "a.gptd"], "is outside"),
        (["--env", GRID, "--candidates", "0", "1", "--out", "a.gptd"], "candidates are for continuous actions"),
        (["--env", GRID, "--gamma", "1", "--out", "a.gptd"], "gamma must lie in [0, 1)"),
        (["--env", GRID, "--out", "a.png"], "a.png is for the picture"),
    ],
)
def test_iterate_refuses(arguments: list[str], words: str, tmp_path: Path, capsys: Capture):
    arguments[-1] = str(tmp_path / "new" / arguments[-1])
    assert run("iterate", *arguments) == 2
    assert words in complaint(capsys)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("breaks")
def test_iterate_in_an_environment_that_fails(tmp_path: Path, capsys: Capture):
    more = ["--env-kwargs", "n=40", "--n-transitions", 60, "--out", tmp_path / "new" / "a.gptd"]
    assert run("iterate", "--env", "robots:Breaks-v0", *more) == 1
    said = complaint(capsys)
    assert "RuntimeError: the robot fell over (step 40)" in said and "saved" not in said
    assert list(tmp_path.iterdir()) == []


def test_an_agent_of_our_own_acts(iterated: Path, tmp_path: Path, capsys: Capture):
    out = tmp_path / "data.npz"
    more = ["--n-episodes", 2, "--gamma", 0.9, "--out", out]
    assert run("collect", "--env", GRID, "--agent", iterated, *more) == 0
    agent, data = PolicyIteration.load(iterated), gptd_rl.Trajectories.load(out)
    left = np.setdiff1d(np.arange(len(data)), data.last)
    assert data.actions is not None
    np.testing.assert_array_equal(data.actions[left], agent.predict(data.states[left])[0])
    capsys.readouterr()
    assert run("collect", "--env", "Acrobot-v1", "--agent", iterated, *more) == 2
    assert "the environment has 3 actions, but the agent learnt with 2" in complaint(capsys)


def test_candidates_of_several_numbers():
    from gptd_rl.cli.iterate import _actions

    np.testing.assert_array_equal(_actions([1, 2, 3, 4], (2,)), [[1, 2], [3, 4]])
    with pytest.raises(ValueError, match="an action has 2 numbers"):
        _actions([1, 2, 3], (2,))


# plot


@pytest.fixture(scope="module")
def gridworld() -> gptd_rl.Trajectories:
    return gptd_rl.collect(GRID, TowardsMiddle(), n_transitions=60, gamma=0.9, seed=0)


def test_plot_a_model(gridworld: gptd_rl.Trajectories, tmp_path: Path, capsys: Capture):
    path = gptd_rl.GPTD(kernel="ard").fit(gridworld).save(tmp_path / "v.gptd")
    assert run("plot", path) == 0
    assert capsys.readouterr().out == f"picture: {tmp_path / 'v.png'}\n"
    assert (tmp_path / "v.png").read_bytes().startswith(b"\x89PNG")
    assert run("plot", path, "--inputs", 1, 0, "--out", tmp_path / "new" / "v.JPG") == 0
    assert (tmp_path / "new" / "v.JPG").read_bytes().startswith(b"\xff\xd8")
    capsys.readouterr()
    for inputs in ((0, 2), (1, 1)):
        assert run("plot", path, "--inputs", *inputs, "--out", tmp_path / "w.png") == 2
        assert "--inputs must be two different ones of 0 to 1" in complaint(capsys)


def test_plot_transitions(gridworld: gptd_rl.Trajectories, tmp_path: Path, capsys: Capture):
    path = gridworld.save(tmp_path / "data.npz")
    assert run("plot", path, "--out", tmp_path / "v.png") == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first == f"{path} holds 60 transitions: fitting GPTD() to them"
    assert second == f"picture: {tmp_path / 'v.png'}"
    assert run("plot", path, "--inputs", 0, 5, "--out", tmp_path / "w.png") == 2
    assert "of 0 to 1, got 0 5" in complaint(capsys)


def walk(*inputs: Any) -> gptd_rl.GPTD:
    """A model of one walk, in which all inputs are taken for equally relevant."""
    episode = dict(observations=np.column_stack(inputs), rewards=-np.ones(len(inputs[0]) - 1), terminated=True)
    return gptd_rl.GPTD(kernel="isotropic").fit(gptd_rl.Trajectories.from_episodes([episode], gamma=0.9))


def test_what_is_drawn():
    axes = plot.draw(walk(np.arange(9.0), np.zeros(9), np.arange(9.0) % 2)).axes
    assert [ax.get_title() for ax in axes if ax.get_title()] == [
        "value function and visited states",
        "where it is unsure",
        "what matters",
    ]
    assert all((ax.get_xlabel(), ax.get_ylabel()) == ("input 0", "input 2") for ax in axes[:2])
    assert [ax.get_ylabel() for ax in axes[3:]] == ["V", "standard deviation of V"]
    axes = plot.draw(walk(np.arange(9.0), np.arange(9.0) % 4, np.arange(9.0) % 2), [2, 1]).axes
    assert all((ax.get_xlabel(), ax.get_ylabel()) == ("input 2", "input 1") for ax in axes[:2])


def test_one_input_is_a_section():
    axes = plot.draw(walk(np.arange(9.0))).axes
    assert [ax.get_title() for ax in axes] == ["value function, with 95 % interval", "what matters"]


@pytest.mark.parametrize(
    ("name", "out", "words"),
    [
        ("none.gptd", "v.png", "there is no file"),
        ("text.gptd", "v.png", "neither a model nor transitions"),
        ("arrays.npz", "v.png", "does not hold trajectories"),
        ("agent.gptd", "v.png", "is not a gptd-rl model"),
        ("q.gptd", "v.png", "holds a GPTDQ: only GPTD models can be drawn"),
        ("text.gptd", "v.xyz", "its name must end in .png or"),
        ("text.gptd", "v", "its name must end in .png or"),
        ("text.png", "text.png", "is the file to be read"),
        (".", "v.png", "there is no file"),
    ],
)
def test_plot_refuses(
    name: str, out: str, words: str, gridworld: gptd_rl.Trajectories, iterated: Path, tmp_path: Path, capsys: Capture
):
    for text in ("text.gptd", "text.png"):
        (tmp_path / text).write_text("words")
    np.savez(tmp_path / "arrays.npz", a=np.ones(3))
    (tmp_path / "agent.gptd").write_bytes(iterated.read_bytes())
    if name == "q.gptd":
        gptd_rl.GPTDQ().fit(gridworld).save(tmp_path / name)
    before = sorted(tmp_path.iterdir())
    assert run("plot", tmp_path / name, "--out", tmp_path / out) == 2
    assert words in complaint(capsys)
    assert sorted(tmp_path.iterdir()) == before


# evaluate, with a stand-in for the work


def an_evaluation(**changes: Any) -> results.Evaluation:
    """Made up."""
    data = gptd_rl.collect(GRID, TowardsMiddle(), n_transitions=20, gamma=0.9, seed=0)
    setting = results.Setting("A2C", "Grid[red]-v0", 0.95, True, 20, 5, 4, tuple("abcdefgh"), False, 0, {"GPTD": 1.0})
    relevance = results.Relevance(
        "ard", np.array([0.5, 3.0, *[0.01] * 5, 1e-9]), None, None, tuple(range(7)), (7,), -10.0, -9.0, 20
    )
    start = results.StartReturn(results.Interval(-4.5, -5.0, -4.0), results.Interval(-20.0, -23.0, -17.0), -20, 7.5, 4)
    scores = (
        results.Score("GPTD", 0.1234, 0.0, -0.5, (0.5, 0.8, 0.947), 0.25),
        results.Score("A2C's critic", 12345.6, 0.1, float("nan"), (0.1, 0.2, 0.3), 1e-5),
        results.Score("Monte Carlo", 2.0, 0.1, 3.0, (0.4, 0.7, 0.9), 2.5),
    )
    zeros = np.zeros(3)
    check = results.Check(
        "rollouts", np.zeros((3, 8)), zeros, zeros, np.arange(3), zeros, zeros, zeros, None, zeros, {}, scores, 200
    )
    timing = results.Timing(1.0, 2.0, 3.0)
    made: dict[str, Any] = dict(
        setting=setting,
        start=start,
        relevance=relevance,
        check=check,
        disagreements=(),
        off_policy=None,
        value=None,
        critic=None,
        data=data,
        warnings=("Few episodes.",),
        timing=timing,
    )
    return results.Evaluation(**made | changes)


@pytest.fixture(autouse=True)
def work(monkeypatch) -> dict[str, Any]:
    """Put a stand-in for `evaluate_agent` in its place; what it was called with, and what it does, are in here."""
    seen: dict[str, Any] = {}

    def evaluate_agent(policy: Any, env: Any, **options: Any) -> results.Evaluation:
        seen.update(options, policy=policy, env=env)
        print("an environment that prints")
        for stage, done, total in [
            ("collect", 0, 10),
            ("collect", 10, 10),
            ("fit", 0, 0),
            ("fit", 3, 0),
            ("check", 1, 2),
        ]:
            options["progress"](stage, done, total)
        if "error" in seen:
            raise seen["error"]
        return an_evaluation()

    def write(self: results.Evaluation, folder: Path, command: str) -> Path:
        assert command.startswith("gptd-rl ")
        (folder / "index.html").write_text("page")
        return folder / "index.html"

    module = types.ModuleType("gptd_rl.evaluation.evaluate")
    module.evaluate_agent = evaluate_agent  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "gptd_rl.evaluation.evaluate", module)
    monkeypatch.setattr(results.Evaluation, "write", write)
    return seen


def test_evaluate(work: dict[str, Any], stand: Stand, agent_file: Path, tmp_path: Path, capsys: Capture):
    out = tmp_path / "new" / "page"
    assert run("evaluate", "--env", GRID, "--agent", agent_file, "--out", out) == 0
    said, error = capsys.readouterr()
    assert error == "" and said.endswith(f"page: {out / 'index.html'}\n")
    assert "A2C on Grid[red]-v0" in said
    assert (out / "index.html").read_text() == "page"
    progress = work.pop("progress")
    assert callable(progress)
    assert work == dict(
        policy=stand, env=GRID, n_transitions=10_000, gamma=None, deterministic=True, seed=0, target=None
    )


def test_evaluate_with_every_option(work: dict[str, Any], stand: Stand, agent_file: Path, tmp_path: Path):
    named = ["--env", GRID, "--agent", agent_file, "--algo", "PPO", "--target", agent_file]
    more = ["--n-transitions", 7, "--gamma", 0.5, "--seed", 9, "--stochastic", "--env-kwargs", "max_episode_steps=3"]
    assert run("evaluate", *named, *more, "--out", tmp_path) == 0
    assert (work["n_transitions"], work["gamma"], work["seed"], work["deterministic"]) == (7, 0.5, 9, False)
    assert work["policy"] is stand and work["target"] is stand and stand.seeds == [9, 9]
    assert work["env"].spec.max_episode_steps == 3


def test_evaluate_prints_json_and_nothing_else(
    work: dict[str, Any], stand: Stand, agent_file: Path, tmp_path: Path, capsys: Capture
):
    assert run("evaluate", "--env", GRID, "--agent", agent_file, "--out", tmp_path, "--json") == 0
    said, error = capsys.readouterr()
    found = json.loads(said)
    assert found["setting"]["agent"] == "A2C" and found["check"]["scores"][1]["nlpd"] is None
    assert found["page"] == str(tmp_path / "index.html")
    assert error == "an environment that prints\n"


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (KeyboardInterrupt(), 130, "interrupted, nothing was written"),
        (InterruptedFitWarning("the best so far"), 130, "interrupted, nothing was written"),
        (AgentError("no such agent"), 2, "no such agent"),
        (gptd_rl.CollectionError("cannot begin"), 2, "cannot begin"),
        (gptd_rl.CollectionError("broke", an_evaluation().data), 1, "broke"),
        (ValueError("nothing\nto fit"), 1, "nothing to fit"),
    ],
)
def test_evaluate_fails(
    error: BaseException,
    code: int,
    words: str,
    work: dict[str, Any],
    stand: Stand,
    agent_file: Path,
    tmp_path: Path,
    capsys: Capture,
):
    work["error"] = error
    assert run("evaluate", "--env", GRID, "--agent", agent_file, "--json", "--out", tmp_path / "new") == code
    out, said = capsys.readouterr()
    assert out == "" and said == f"an environment that prints\ngptd-rl: {words}\n"
    assert not (tmp_path / "new").exists()


# The summary


def shown(evaluation: results.Evaluation, width: int = 150) -> str:
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(summary(evaluation))
    return console.export_text()


def test_summary():
    text = shown(an_evaluation())
    for words in (
        "A2C on Grid[red]-v0: 20 transitions in 5 episodes, 4 of which terminated; ",
        "; γ = 0.95, most likely actions, seed 0",
        "-4.5, 95 % interval -5 to -4",
        "-20 ± 3 (95 %) over 4 episodes; Stable-Baselines3 reports -20 ± 7.5, the spread of episodes",
        "b 3, a 0.5, c 0.01, d 0.01, e 0.01, f 0.01, 2 weaker ones",
        "can be left out       h",
        "RMSE ┃ 95 % coverage ┃ half-width ┃ NLPD",
        "the mean of 200 fresh rollouts at 3 held-out states",
        "warning: Few episodes.",
    ):
        assert words in text, text
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in text.splitlines() if line.startswith("│")]
    assert rows == [
        ["GPTD", "0.123", "94.7 %", "0.25", "-0.5"],
        ["A2C's critic", "12346", "30.0 %", "1e-05", "–"],
        ["Monte Carlo", "2", "90.0 %", "2.5", "3"],
    ]


def test_summary_of_what_there_is_not():
    made = an_evaluation()
    text = shown(
        replace(
            made,
            start=replace(made.start, returns=None, n_episodes=1),
            relevance=replace(made.relevance, kernel="isotropic", removed=()),
            check=replace(made.check, kind="returns", n_rollouts=0),
            off_policy=results.OffPolicy("PPO", 9, 0.5, 0.5, "They differ."),
            warnings=("They differ.",),
        )
    )
    assert "not known: 1 episode complete" in text and "all observations alike" in text
    assert "can be left out" not in text and "returns of fresh episodes" in text
    assert "PPO, on the data of A2C" in text and text.count("They differ.") == 1
    assert shown(made, 60)  # narrow terminals


def test_strongest():
    assert strongest(["a"], [0.123]) == "a 0.12"
    assert strongest(list("abcdef"), [1, 2, 3, 4, 5, 6]).startswith("f 6, e 5")
    assert "weaker" not in strongest(list("abcdef"), [1, 2, 3, 4, 5, 6])


@pytest.mark.parametrize(
    ("x", "text"), [(float("nan"), "–"), (0.0, "0"), (-1234.5, "-1234"), (1.23456, "1.23"), (2e9, "2e+09")]
)
def test_number(x: float, text: str):
    assert number(x) == text


# The terminal


def test_progress_on_a_terminal(monkeypatch, capsys: Capture):
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes any stream for a terminal then
    monkeypatch.setenv("TERM", "xterm")
    with terminal.progress("collect", "fit", "check") as report:
        report("collect", 5, 10)
        report("fit", 0, 0)
        report("check", 2, 4)
    out, error = capsys.readouterr()
    assert out == "" and all(word in error for word in ("collect", "fit", "check", "2/4"))
    with terminal.progress("fit") as report:
        report("fit", 0, 0)  # nobody knows how much there is
    assert "0/0" not in capsys.readouterr().err


def test_warnings_are_one_line(capsys: Capture, monkeypatch):
    def warn(args: argparse.Namespace) -> int:
        warnings.warn("be\ncareful", UserWarning, stacklevel=1)
        return 0

    monkeypatch.setattr(plot, "run", warn)
    before = warnings.showwarning
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        assert run("plot", "file") == 0
    assert capsys.readouterr().err == "gptd-rl: warning: be careful\n"
    assert warnings.showwarning is before


@pytest.mark.parametrize("command", ["collect", "iterate", "plot"])
def test_interrupted(command: str, gridworld: gptd_rl.Trajectories, tmp_path: Path, capsys: Capture, monkeypatch):
    def stop(*args: Any, **kwargs: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(gym, "make", stop)
    monkeypatch.setattr(plot, "draw", stop)
    model = gptd_rl.GPTD(kernel="isotropic").fit(gridworld).save(tmp_path / "v.gptd")
    more: dict[str, list[object]] = {
        "collect": ["--env", GRID, "--n-episodes", 1, "--gamma", 0.9],
        "iterate": ["--env", GRID],
        "plot": [model],
    }
    assert run(command, *more[command], "--out", tmp_path / "new" / "a.svg") == 130
    assert complaint(capsys) == "gptd-rl: interrupted, nothing was written\n"
    assert list(tmp_path.iterdir()) == [model]


def test_a_fit_cut_short_is_not_drawn(gridworld: gptd_rl.Trajectories, tmp_path: Path, capsys: Capture, monkeypatch):
    def interrupted(self: gptd_rl.GPTD, data: Any) -> gptd_rl.GPTD:
        warnings.warn("this is the best so far", InterruptedFitWarning, stacklevel=2)
        return self

    monkeypatch.setattr(gptd_rl.GPTD, "fit", interrupted)
    path = gridworld.save(tmp_path / "data.npz")
    with warnings.catch_warnings():
        warnings.simplefilter("default")  # as in a process of its own
        assert run("plot", path) == 130
    assert capsys.readouterr().err == "gptd-rl: interrupted, nothing was written\n"
    assert list(tmp_path.iterdir()) == [path]
