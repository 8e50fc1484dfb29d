"""Every example runs in a fresh process, in an empty folder, with warnings as errors; the long ones on less."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
# For every example, what it prints, and the file that it writes, if any.
SAYS_AND_WRITES: dict[str, tuple[str, str | None]] = {
    "compare_agents": ("angle and speed is better than angle", "comparison/index.html"),
    "dynamics_model": ("mean return in the model -", None),
    "evaluate_any_policy": ("LinearController on CartPole-v1", "any_policy/index.html"),
    "evaluate_sb3_agent": ("A2C on CartPole-v1", "demo/index.html"),
    "markov_test": ("place and angle: The observations do not tell all", None),
    "million": ("fitted by the sparse method", None),
    "off_policy_minari": ("largest error of a prediction: 0.00", None),
    "policy_iteration": ("Acrobot-v1 after 1000 steps: return -", "policy_iteration.png"),
    "relevances": ("inputs kept: [0]", "relevances.png"),
    "tensorboard_callback": ("importance/y", "runs/A2C_1"),
}


def run(example: Path, folder: Path) -> str:
    environment = os.environ | dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    small = ["--small"] if "--small" in example.read_text(encoding="utf-8") else []
    done = subprocess.run(
        [sys.executable, "-W", "error", str(example), *small],
        cwd=folder,
        env=environment | {"MPLBACKEND": "Agg", "SDL_VIDEODRIVER": "dummy"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda p: p.stem)
def test_example_runs(example: Path, tmp_path: Path):
    says, writes = SAYS_AND_WRITES[example.stem]
    assert says in run(example, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ([] if writes is None else [writes.partition("/")[0]])
    assert writes is None or (tmp_path / writes).exists()


def test_every_example_has_expectations():
    assert {example.stem for example in EXAMPLES} == set(SAYS_AND_WRITES)


def test_the_demo_trains_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    torch = pytest.importorskip("torch")
    demo = runpy.run_path(str(ROOT / "examples" / "evaluate_sb3_agent.py"))
    monkeypatch.setattr("gptd_rl.evaluate_agent", lambda *args, **options: pytest.fail("far enough"))
    threads, said = torch.get_num_threads(), []
    for _ in range(2):
        with pytest.raises(pytest.fail.Exception, match="far enough"):
            demo["main"](demo["Arguments"](out=tmp_path / "new" / "demo", n_steps=80))
        said.append(capsys.readouterr().out)
    torch.set_num_threads(threads)
    assert ["training for 80 steps" in text for text in said] == [True, False]
