"""V^π of a trained agent at states of fresh episodes, without the library's own check: the truth of `evaluate.py`.

Deterministic systems take one rollout per state, random ones many, and the standard error is kept. There are no time
limits: an episode that a limit would cut goes on. Four ways to start rollouts from a state, the fastest that applies:

- batched copies of classic control (`control_systems.py`), from the observation;
- the transition table of a toy text: V^π is a linear solve;
- MuJoCo: positions and velocities are set;
- others: the episode is played again from its seed, and deep copies go on (Box2D cannot be copied: played each time).

Truths are kept in results/evaluate/truth/, with the hash of the agent's file.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from control_systems import SYSTEMS, rolled_out_values
from gymnasium import spaces
from gymnasium.envs.toy_text.blackjack import BlackjackEnv
from numpy.typing import NDArray
from trained_agents import FOLDER, Training

Array = NDArray[np.float64]
Act = Callable[[NDArray[Any]], NDArray[Any]]

TRUTHS = FOLDER / "truth"
SEED = 7_700_000  # of the fresh episodes: no data set has it
N_EPISODES = 40  # at once
TOLERANCE = 1e-4  # rollouts end when γᵗ is below


@dataclass(frozen=True, eq=False)
class Truth:
    """V^π at some states.

    Attributes
    ----------
    states : ndarray of shape (n, n_dims)
        Flattened as `gptd_rl.collect` does.
    values : ndarray of shape (n,)
    errors : ndarray of shape (n,)
        Standard errors of `values`; 0 where they are exact.
    gamma : float
    """

    states: Array
    values: Array
    errors: Array
    gamma: float

    def save(self, path: Path, **more: Any) -> None:
        """Write an .npz."""
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(
            path, states=self.states, values=self.values, errors=self.errors, gamma=np.array(self.gamma), **more
        )


def truth_of(training: Training, deterministic: bool, n_states: int = 100, n_rollouts: int | None = None) -> Truth:
    """The truth about an agent: from its file if there is one for this agent, else computed and written.

    Parameters
    ----------
    n_rollouts : int, optional
        From each state, if actions or transitions are random; `training.n_rollouts` by default. Another number, or
        another number of states, is neither read nor written.
    """
    wanted = n_rollouts is None and n_states == 100
    path = TRUTHS / f"{training.name}-{mode(deterministic)}.npz"
    agent_hash = file_hash(training.path)
    if wanted and path.exists():
        with np.load(path) as stored:
            if str(stored["agent"]) == agent_hash:
                return Truth(stored["states"], stored["values"], stored["errors"], float(stored["gamma"]))
    found = compute(training, deterministic, n_states, n_rollouts or training.n_rollouts)
    if wanted:
        found.save(path, agent=np.array(agent_hash))
    return found


def file_hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def mode(deterministic: bool) -> str:
    """Name of an action mode."""
    return "greedy" if deterministic else "sampled"


def compute(training: Training, deterministic: bool, n_states: int, n_rollouts: int) -> Truth:
    """States of fresh episodes, and V^π there."""
    agent = training.agent()
    torch.manual_seed(SEED)

    def act(observations: NDArray[Any]) -> NDArray[Any]:
        return agent.predict(observations, deterministic=deterministic)[0]

    visits = chosen_visits(training.env, act, n_states)
    gamma, observations = agent.gamma, np.stack([visit.observation for visit in visits])
    env = gym.make(training.env)
    states = np.stack([spaces.flatten(env.observation_space, x) for x in observations]).astype(np.float64)
    if training.env in SYSTEMS:
        n = 1 if deterministic else n_rollouts
        values, errors = rolled_out_values(SYSTEMS[training.env], act, states, gamma, n, tolerance=1e-5)
    elif hasattr(env.unwrapped, "P"):
        values = solved(env.unwrapped.P, action_probabilities(agent, env, deterministic), gamma)[observations]
        errors = np.zeros(len(values))
    else:
        rollouts = Rollouts(training.env, act, gamma, visits)
        n = 1 if deterministic and training.is_deterministic else n_rollouts
        returns = np.array([rollouts.returns(SEED + 1 + k) for k in range(n)])
        values = returns.mean(axis=0)
        errors = returns.std(axis=0, ddof=1) / np.sqrt(n) if n > 1 else np.zeros(len(values))
    return Truth(states, values, errors, gamma)


# ------------------------------------------------------------------------------------------ states of fresh episodes


@dataclass(frozen=True, eq=False)
class Visit:
    """A state of an episode: `actions` lead there from the start with `seed`."""

    observation: Any
    seed: int
    actions: list[Any]


def chosen_visits(env_id: str, act: Act, n_states: int) -> list[Visit]:
    """States drawn without replacement from all that fresh episodes visit before their ends."""
    visits: list[Visit] = []
    seed = SEED
    while len(visits) < 10 * n_states:
        visits += episodes(env_id, act, range(seed, seed + N_EPISODES))
        seed += N_EPISODES
    rows = np.random.default_rng(SEED).choice(len(visits), n_states, replace=False)
    return [visits[i] for i in sorted(rows)]


def episodes(env_id: str, act: Act, seeds: range) -> Iterator[Visit]:
    """States of one episode per seed, within the environment's time limit."""
    envs = [gym.make(env_id) for _ in seeds]
    observations = [env.reset(seed=seed)[0] for env, seed in zip(envs, seeds, strict=True)]
    history: list[list[Any]] = [[] for _ in envs]
    running = list(range(len(envs)))
    while running:
        actions = act(np.stack([observations[i] for i in running]))
        ended = []
        for i, action in zip(running, actions, strict=True):
            yield Visit(np.array(observations[i]), seeds[i], history[i][:])
            observations[i], _, terminated, truncated, _ = envs[i].step(as_action(action))
            history[i].append(action)
            if terminated or truncated:
                ended.append(i)
        running = [i for i in running if i not in ended]
    for env in envs:
        env.close()


def as_action(action: Any) -> Any:
    """A single action as environments take it."""
    return int(action) if np.ndim(action) == 0 else action


# ------------------------------------------------------------------------------------------ rollouts from a state


class Rollouts:
    """Rollouts of a policy from visited states, one from each at a time."""

    def __init__(self, env_id: str, act: Act, gamma: float, visits: list[Visit]) -> None:
        self.act, self.gamma, self.visits = act, gamma, visits
        self.envs = [gym.make(env_id, max_episode_steps=-1, disable_env_checker=True) for _ in visits]
        self.start: Callable[[int, np.random.Generator], Any]
        first: Any = self.envs[0].unwrapped
        if hasattr(first, "set_state"):
            self.replay_all()
            self.known = [(e.data.qpos.copy(), e.data.qvel.copy()) for e in (env.unwrapped for env in self.envs)]
            self.start = self.set_state
        elif hasattr(first, "world"):  # Box2D
            self.start = self.replay
        elif isinstance(first, BlackjackEnv):
            self.replay_all()
            self.hands = [(list(e.player), list(e.dealer)) for e in (env.unwrapped for env in self.envs)]
            self.start = self.deal
        else:
            self.replay_all()
            self.originals = self.envs[:]
            self.start = self.copied

    def replay_all(self) -> None:
        """Bring every environment to its state."""
        for i in range(len(self.visits)):
            self.replay(i, np.random.default_rng(0))

    def replay(self, i: int, rng: np.random.Generator) -> Any:
        """Play the episode again up to state i, then go on with other random numbers."""
        visit, env = self.visits[i], self.envs[i]
        observation, _ = env.reset(seed=visit.seed)
        for action in visit.actions:
            observation = env.step(as_action(action))[0]
        if not np.allclose(observation, visit.observation, atol=1e-6):
            raise RuntimeError(f"the episode with seed {visit.seed} went another way when it was played again.")
        env.unwrapped.np_random = rng
        return observation

    def set_state(self, i: int, rng: np.random.Generator) -> Any:
        """State i of a MuJoCo environment."""
        env: Any = self.envs[i]
        env.reset(seed=0)
        env.unwrapped.set_state(*self.known[i])
        env.unwrapped.np_random = rng
        return self.visits[i].observation

    def deal(self, i: int, rng: np.random.Generator) -> Any:
        """Hand i of Blackjack; the dealer's second card is drawn, as the observation does not tell it."""
        env: Any = self.envs[i].unwrapped
        (player, dealer), hidden = self.hands[i], min(int(rng.integers(1, 14)), 10)
        env.player, env.dealer, env.np_random = player[:], [dealer[0], hidden], rng
        return self.visits[i].observation

    def copied(self, i: int, rng: np.random.Generator) -> Any:
        """A copy of the environment in state i."""
        env: Any = copy.deepcopy(self.originals[i])
        env.unwrapped.np_random = rng
        self.envs[i] = env
        return self.visits[i].observation

    def returns(self, seed: int) -> Array:
        """Discounted returns, of shape (n_states,)."""
        n = len(self.visits)
        observations = [self.start(i, np.random.default_rng([seed, i])) for i in range(n)]
        total, running = np.zeros(n), np.arange(n)
        for t in range(int(np.ceil(np.log(TOLERANCE) / np.log(self.gamma)))):
            actions = self.act(np.stack([observations[i] for i in running]))
            alive = np.ones(len(running), dtype=bool)
            for k, i in enumerate(running):
                observations[i], reward, terminated, _, _ = self.envs[i].step(as_action(actions[k]))
                total[i] += self.gamma**t * float(reward)
                alive[k] = not terminated
            running = running[alive]
            if not len(running):
                break
        return total


# ------------------------------------------------------------------------------------------ tables


def action_probabilities(agent: Any, env: gym.Env[Any, Any], deterministic: bool) -> Array:
    """π(a|s) of an agent with numbered states and actions, of shape (n_states, n_actions)."""
    assert isinstance(env.observation_space, spaces.Discrete) and isinstance(env.action_space, spaces.Discrete)
    every = np.arange(env.observation_space.n)
    if deterministic:
        return np.eye(int(env.action_space.n))[agent.predict(every, deterministic=True)[0]]
    with torch.no_grad():
        tensor, _ = agent.policy.obs_to_tensor(every)
        return agent.policy.get_distribution(tensor).distribution.probs.numpy().astype(np.float64)


def solved(table: dict[int, dict[int, list[tuple[float, int, float, bool]]]], policy: Array, gamma: float) -> Array:
    """V^π = (I − γP)⁻¹r from the transition table of a toy text, of shape (n_states,)."""
    n = len(policy)
    P, r = np.zeros((n, n)), np.zeros(n)
    for s, moves in table.items():
        for a, outcomes in moves.items():
            for probability, following, reward, terminated in outcomes:
                weight = policy[s, a] * probability
                r[s] += weight * float(reward)
                if not terminated:
                    P[s, following] += weight
    return np.linalg.solve(np.eye(n) - gamma * P, r)
