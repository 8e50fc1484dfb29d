"""An agent's own critic as a function of states: what PyTorch gives when asked by hand."""

import subprocess
import sys
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from numpy.testing import assert_allclose, assert_array_equal

from gptd_rl.data.spaces import flatten
from gptd_rl.sb3 import critics
from gptd_rl.sb3.critics import critic_name, critic_of
from gptd_rl.sb3.loading import load_agent, load_statistics
from gptd_rl.sb3.policies import NormalizedPolicy

sb3 = pytest.importorskip("stable_baselines3")
torch = pytest.importorskip("torch")

ENVS = dict(
    PPO="CartPole-v1", A2C="CartPole-v1", DQN="CartPole-v1", SAC="Pendulum-v1", TD3="Pendulum-v1", DDPG="Pendulum-v1"
)
NAMES = dict(
    PPO="PPO's critic",
    A2C="A2C's critic",
    DQN="DQN's max Q",
    SAC="SAC's critics",
    TD3="TD3's critics",
    DDPG="DDPG's critic",
)


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def make(algorithm: str, env: Any = None, policy: str = "MlpPolicy", **settings: Any) -> Any:
    sizes: dict[str, Any] = dict(PPO=dict(n_steps=64), A2C={}).get(algorithm, dict(buffer_size=50))
    net = dict(net_arch=[8])
    return getattr(sb3, algorithm)(
        policy, env or ENVS[algorithm], device="cpu", seed=0, policy_kwargs=net, **sizes, **settings
    )


def some_states(n: int, n_dims: int) -> Any:
    return np.random.default_rng(0).normal(size=(n, n_dims))


def by_hand(algorithm: str, model: Any, x: Any) -> Any:
    policy = model.policy
    with torch.no_grad():
        if algorithm in ("PPO", "A2C"):
            return policy.value_net(policy.mlp_extractor.forward_critic(policy.features_extractor(x))).numpy()[:, 0]
        if algorithm == "DQN":
            return policy.q_net.q_net(x).numpy().max(axis=1)
        latent = policy.actor.latent_pi(x) if algorithm == "SAC" else x
        action = torch.tanh(policy.actor.mu(latent)) if algorithm == "SAC" else policy.actor.mu(latent)
        both = torch.cat([x, action], dim=1)
        return np.min([q(both).numpy()[:, 0] for q in policy.critic.q_networks], axis=0)


@pytest.mark.parametrize("algorithm", ENVS)
@pytest.mark.parametrize("chunk", [4096, 3])
def test_critic_values_by_hand(algorithm, chunk, monkeypatch):
    monkeypatch.setattr(critics, "CHUNK", chunk)
    model = make(algorithm)
    states = some_states(10, model.observation_space.shape[0])
    critic = critic_of(model)
    assert critic is not None
    values = critic(states)
    assert values.shape == (10,) and values.dtype == np.float64 and np.ptp(values) > 0
    assert_allclose(values, by_hand(algorithm, model, torch.tensor(states, dtype=torch.float32)), rtol=1e-5, atol=1e-6)
    assert critic(states[:0]).shape == (0,)
    assert_allclose(critic(states[:1].tolist()), values[:1], rtol=1e-5)
    of_policy = critic_of(model.policy)
    assert of_policy is not None
    assert_array_equal(of_policy(states), values)


@pytest.mark.parametrize("algorithm", ENVS)
def test_critic_name(algorithm):
    model = make(algorithm)
    assert critic_name(model) == NAMES[algorithm]


def test_critic_is_the_minimum_of_several():
    model = make("TD3")
    states = some_states(50, 3)
    x = torch.tensor(states, dtype=torch.float32)
    with torch.no_grad():
        first, second = model.policy.critic(x, model.policy.actor(x))
        model.policy.critic.q_networks[0][-1].bias += (second - first).median()  # now they take turns
        each = [q.numpy()[:, 0] for q in model.policy.critic(x, model.policy.actor(x))]
    assert (each[0] < each[1]).any() and (each[0] > each[1]).any()
    critic = critic_of(model)
    assert critic is not None
    assert_allclose(critic(states), np.minimum(*each), rtol=1e-6)


def test_critic_of_sampled_actions(monkeypatch):
    model = make("SAC")
    states = some_states(5, 3)
    best, drawn, again = critic_of(model), critic_of(model, deterministic=False), critic_of(model, False, seed=1)
    assert best is not None and drawn is not None and again is not None
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    values = drawn(states)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert_array_equal(drawn(states), values)
    assert (values != best(states)).all() and (values != again(states)).all()
    with torch.no_grad():  # as good as none, for a moment
        model.policy.actor.log_std.bias -= 30.0
        assert_allclose(drawn(states), best(states), rtol=1e-4)
        model.policy.actor.log_std.bias += 30.0
    # The average over many is that by hand.
    monkeypatch.setattr(critics, "N_ACTIONS", 4000)
    x = torch.tensor(states, dtype=torch.float32).repeat_interleave(4000, dim=0)
    with torch.no_grad():
        mean, log_std, _ = model.policy.actor.get_action_dist_params(x)
        action = torch.tanh(mean + log_std.exp() * torch.randn_like(mean))
        q = torch.cat(model.policy.critic(x, action), dim=1).amin(dim=1).reshape(5, -1)
    error = q.std(dim=1).numpy() * np.sqrt(2 / 4000)
    assert (np.abs(drawn(states) - q.mean(dim=1).numpy()) < 5 * error).all()
    assert (np.abs(drawn(states) - q.mean(dim=1).numpy()) < 0.5 * np.abs(q.mean(dim=1).numpy())).all()


def test_critic_only_sac_samples_actions():
    for algorithm in set(ENVS) - {"SAC"}:
        model = make(algorithm)
        states = some_states(5, model.observation_space.shape[0])
        a, b = critic_of(model, deterministic=True), critic_of(model, deterministic=False)
        assert a is not None and b is not None
        assert_array_equal(a(states), b(states))


def test_critic_uses_evaluation_mode():
    from torch import nn

    class Shaky(nn.Module):
        """Answers differently in training."""

        def forward(self, x):
            return x + 100.0 * self.training

    model = make("PPO")
    critic = critic_of(model)
    assert critic is not None
    states = some_states(5, 4)
    expected = critic(states)
    model.policy.value_net = nn.Sequential(model.policy.value_net, Shaky())
    model.policy.set_training_mode(True)
    assert_array_equal(critic(states), expected)


def test_critic_with_discrete_observations():
    model = make("DQN", gym.make("FrozenLake-v1"))
    critic = critic_of(model)
    assert critic is not None
    with torch.no_grad():
        expected = model.q_net.q_net(torch.eye(16)).numpy().max(axis=1)  # SB3 encodes one-hot, too
    assert_allclose(critic(np.eye(16)), expected, rtol=1e-6)


class Rooms(gym.Env):
    observation_space: Any = spaces.Dict(
        position=spaces.Box(-9.0, 9.0, (2,), np.float32),
        room=spaces.Discrete(3),
        lamps=spaces.MultiBinary(2),
        doors=spaces.MultiDiscrete([2, 3]),
    )
    action_space: Any = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        return self.observation_space.sample(), 1.0, False, False, {}


def batch_of_rooms(n: int) -> Any:
    space = spaces.Dict(Rooms.observation_space.spaces)
    space.seed(0)
    rows = [space.sample() for _ in range(n)]
    return {key: np.stack([row[key] for row in rows]) for key in space}


def test_critic_with_dict_observations():
    model = make("PPO", Rooms(), "MultiInputPolicy")
    batch = batch_of_rooms(6)
    critic = critic_of(model)
    assert critic is not None
    with torch.no_grad():
        expected = model.policy.predict_values(model.policy.obs_to_tensor(batch)[0]).numpy()[:, 0]
    assert_allclose(critic(flatten(Rooms.observation_space, batch)), expected, rtol=1e-6)


# Features


@pytest.mark.parametrize("algorithm", ["PPO", "DQN", "SAC", "TD3"])
@pytest.mark.parametrize("chunk", [4096, 3])
def test_critic_features_are_inputs_of_the_last_layer(algorithm, chunk, monkeypatch):
    monkeypatch.setattr(critics, "CHUNK", chunk)
    model = make(algorithm)
    states = np.random.default_rng(0).normal(size=(10, model.observation_space.shape[0]))
    critic, network = critic_of(model), model.policy
    assert critic is not None
    features = critic.features(states)
    if algorithm == "PPO":
        last = [network.value_net]
    else:
        last = [network.q_net.q_net[-1]] if algorithm == "DQN" else [q[-1] for q in network.critic.q_networks]
    assert features.shape == (10, 8 * len(last)) and features.dtype == np.float64
    outputs = []
    for layer, part in zip(last, np.split(features, len(last), axis=1), strict=True):
        weight, bias = layer.weight.detach().numpy(), layer.bias.detach().numpy()
        outputs.append(part @ weight.T + bias)
        assert not layer._forward_hooks  # hooks are removed
    values = outputs[0].max(axis=1) if algorithm == "DQN" else np.min(outputs, axis=0)[:, 0]
    assert_allclose(values, critic(states), rtol=1e-4, atol=1e-6)
    assert critic.features(states[:0]).shape == (0, 8 * len(last))


@pytest.mark.parametrize("chunk", [4096, 3, 1])
def test_critic_features_of_sampled_actions_are_averages(chunk, monkeypatch):
    model = make("SAC")
    states = np.random.default_rng(0).normal(size=(7, 3))
    critic, best = critic_of(model, deterministic=False), critic_of(model)
    assert critic is not None and best is not None
    monkeypatch.setattr(critics, "CHUNK", chunk)
    features = critic.features(states)
    assert features.shape == (7, 16)
    with torch.no_grad():
        model.policy.actor.log_std.weight[:] = 0.0
        model.policy.actor.log_std.bias[:] = -15.0  # nearly deterministic
    assert_allclose(critic.features(states), best.features(states), rtol=1e-3, atol=1e-4)
    assert np.abs(features - best.features(states)).max() > 1e-3


# Normalization


def normalised(env: Any, tmp_path: Any, **settings: Any) -> Any:
    """A VecNormalize of some experience, and what comes back from its file."""
    from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

    venv = VecNormalize(DummyVecEnv([lambda: gym.make(env) if isinstance(env, str) else env()]), **settings)
    venv.seed(0)
    venv.reset()
    venv.action_space.seed(0)
    for _ in range(30):
        venv.step(np.array([venv.action_space.sample()]))
    venv.save(str(tmp_path / "some.pkl"))
    return venv, load_statistics(tmp_path / "some.pkl")


@pytest.mark.parametrize("norm_reward", [False, True])
@pytest.mark.parametrize("norm_obs", [False, True])
def test_critic_takes_raw_states_and_returns_original_units(norm_obs, norm_reward, tmp_path):
    venv, statistics = normalised("Pendulum-v1", tmp_path, norm_obs=norm_obs, norm_reward=norm_reward)
    model = make("TD3")
    policy = NormalizedPolicy(model, statistics)
    states = some_states(10, 3).astype(np.float32)
    inner, critic = critic_of(model), critic_of(policy)
    assert inner is not None and critic is not None
    seen = (states - venv.obs_rms.mean) / np.sqrt(venv.obs_rms.var + 1e-8) if norm_obs else states
    scale = np.sqrt(venv.ret_rms.var + 1e-8) if norm_reward else 1.0
    assert not norm_reward or scale > 2
    assert_allclose(critic(states), scale * inner(seen), rtol=1e-4)
    assert critic_name(policy) == "TD3's critics"


def test_critic_of_a_model_with_vec_normalize(tmp_path):
    """Its states are normalised ones; its values are in original units all the same."""
    venv, _ = normalised("Pendulum-v1", tmp_path)
    model = make("PPO", venv)
    venv.ret_rms.var, venv.epsilon = np.float64(8.0), 1.0
    critic, bare = critic_of(model), critic_of(model.policy)
    assert critic is not None and bare is not None
    states = some_states(4, 3)
    assert_allclose(critic(states), 3.0 * bare(states), rtol=1e-6)


def test_critic_normalizes_dict_observations(tmp_path):
    _, statistics = normalised(Rooms, tmp_path, norm_obs_keys=["position"], norm_reward=False)
    model = make("DQN", Rooms(), "MultiInputPolicy")
    batch = batch_of_rooms(6)
    critic = critic_of(NormalizedPolicy(model, statistics))
    assert critic is not None
    with torch.no_grad():
        tensor = model.policy.obs_to_tensor(statistics.normalize_obs(batch))[0]
        expected = model.q_net(tensor).numpy().max(axis=1)
    assert_allclose(critic(flatten(Rooms.observation_space, batch)), expected, rtol=1e-6)


def test_critic_of_a_loaded_agent(tmp_path):
    model = make("A2C")
    model.save(tmp_path / "agent")
    loaded = load_agent(tmp_path / "agent")
    a, b = critic_of(model), critic_of(loaded)
    assert a is not None and b is not None
    assert_array_equal(a(some_states(5, 4)), b(some_states(5, 4)))


# No critic


def test_critic_of_other_policies_is_none():
    class Other:
        def predict(self, observation, deterministic=False):
            return 0, None

    assert critic_of(Other()) is None
    assert critic_of(lambda observation: 0) is None
    assert critic_of(None) is None


def test_critic_of_a_recurrent_policy_is_none():
    from stable_baselines3.common.policies import ActorCriticPolicy

    class Recurrent(ActorCriticPolicy):
        def predict_values(self, obs, lstm_states, episode_starts):  # type: ignore[override]
            raise AssertionError("states hold no memory")

    model = sb3.PPO(Recurrent, "CartPole-v1", n_steps=64, device="cpu")
    assert critic_of(model) is None


def test_critic_of_imports_nothing_heavy():
    program = (
        "import sys\n"
        "from gptd_rl.sb3.critics import critic_of\n"
        "assert critic_of(lambda observation: 0) is None\n"
        "assert not {'torch', 'stable_baselines3'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
