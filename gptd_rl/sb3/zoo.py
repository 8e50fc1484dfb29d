"""Folders of rl-zoo: a trained agent with its environment, wrappers and normalization. No code in the files is run.

A folder such as ``logs/ppo/LunarLander-v3_1`` holds ``best_model.zip`` or ``LunarLander-v3.zip``, and in a folder
``LunarLander-v3`` the files ``args.yml`` (algorithm, environment and its arguments), ``config.yml`` (wrappers) and
``vecnormalize.pkl``. What these name is looked up in lists of known algorithms and wrappers.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym

from gptd_rl.checks import one_line
from gptd_rl.exceptions import AgentError, CollectionError
from gptd_rl.rollouts.making import make_env
from gptd_rl.sb3.inert_yaml import plain, read_mapping
from gptd_rl.sb3.loading import ALGORITHM_NAMES, load_agent, load_statistics
from gptd_rl.sb3.policies import NormalizedPolicy

# Wrappers that a file may name: their arguments are plain data, and they write nothing.
_GYMNASIUM = {
    *("ClipAction", "ClipReward", "DelayObservation", "DtypeObservation", "FilterObservation", "FlattenObservation"),
    *("FrameStackObservation", "MaxAndSkipObservation", "RescaleAction", "RescaleObservation", "ReshapeObservation"),
    *("StickyAction", "TimeAwareObservation", "TimeLimit"),
}
_ZOO = {
    *("ActionNoiseWrapper", "ActionSmoothingWrapper", "DelayedRewardWrapper", "FrameSkip", "HistoryWrapper"),
    *("HistoryWrapperObsDict", "MaskVelocityWrapper", "TruncatedOnSuccessWrapper"),
}
WRAPPERS = {
    "gymnasium.wrappers": _GYMNASIUM,
    "rl_zoo3.wrappers": _ZOO,
    "sb3_contrib.common.wrappers": {"TimeFeatureWrapper"},
}
_RENAMED = {"gym.wrappers": "gymnasium.wrappers", "utils.wrappers": "rl_zoo3.wrappers"}  # in older files

BY_HAND = "make the environment in Python and give it, or a function that makes it, to gptd_rl.evaluate_agent"


@dataclass(frozen=True, eq=False)
class ZooRun:
    """A training run of rl-zoo.

    Attributes
    ----------
    policy : Stable-Baselines3 model or NormalizedPolicy
    env_id : str
    env_kwargs : dict
        Arguments of the environment.
    wrappers : tuple of (type, dict)
        Wrappers with their arguments, the innermost first.
    """

    policy: Any
    env_id: str
    env_kwargs: dict[str, Any]
    wrappers: tuple[tuple[type[gym.Wrapper[Any, Any, Any, Any]], dict[str, Any]], ...]

    def make_env(self) -> gym.Env[Any, Any]:
        """Make the environment, with its wrappers."""
        env = make_env(self.env_id, **self.env_kwargs)
        for wrapper, kwargs in self.wrappers:
            try:
                env = wrapper(env, **kwargs)
            except Exception as error:
                text = f"the wrapper {wrapper.__name__} does not fit {self.env_id}: {one_line(error)}"
                raise CollectionError(text) from error
        return env


def load_zoo(
    folder: str | Path,
    *,
    algo: str | None = None,
    env_id: str | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
) -> ZooRun:
    """Read a folder that rl-zoo wrote.

    Parameters
    ----------
    folder : path-like
        Such as ``logs/ppo/LunarLander-v3_1``.
    algo, env_id : str, optional
        Instead of those in the files.
    env_kwargs : mapping, optional
        Arguments of the environment, beside those in the files.

    Returns
    -------
    run : ZooRun
        For ``gptd_rl.evaluate_agent(run.policy, run.make_env)``.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise AgentError(f"there is no folder {folder}.")
    settings = _settings_folder(folder)
    name = settings.name
    path = next((path for path in (folder / "best_model.zip", folder / f"{name}.zip") if path.is_file()), None)
    if path is None:
        raise AgentError(f"{folder} holds no model: expected best_model.zip or {name}.zip, as rl-zoo writes them.")
    args, config = (_read_if_there(settings / file) for file in ("args.yml", "config.yml"))
    kwargs = plain(args.get("env_kwargs") or {}, "env_kwargs in args.yml")
    if not isinstance(kwargs, dict):
        raise AgentError("env_kwargs in args.yml is no mapping: expected names and values.")
    for unsupported in ("frame_stack", "vec_env_wrapper"):
        if config.get(unsupported) not in (None, 1, []):
            raise AgentError(f"config.yml has a {unsupported}, which is not supported: {BY_HAND}.")
    return ZooRun(
        policy=_normalized(load_agent(path, algo=algo or _algo(folder, args)), settings, folder, config),
        env_id=env_id or _env_id(args, name),
        env_kwargs=kwargs | dict(env_kwargs or {}),
        wrappers=_wrappers(plain(config.get("env_wrapper"), "env_wrapper in config.yml")),
    )


def _settings_folder(folder: Path) -> Path:
    """The folder with the settings; its name is that of the environment, without slashes."""
    found = [path.parent for file in ("args.yml", "config.yml") for path in sorted(folder.glob(f"*/{file}"))]
    return found[0] if found else folder / re.sub(r"_\d+$", "", folder.resolve().name)


def _read_if_there(path: Path) -> dict[str, Any]:
    return read_mapping(path) if path.is_file() else {}


def _algo(folder: Path, args: dict[str, Any]) -> str | None:
    """The algorithm in the settings, or the name of the folder above if it is one."""
    if "algo" in args:
        return str(plain(args["algo"], "algo in args.yml"))
    above = folder.resolve().parent.name
    return above if above.lower() in ALGORITHM_NAMES else None


def _env_id(args: dict[str, Any], name: str) -> str:
    found = str(plain(args.get("env", name), "env in args.yml"))
    packages = plain(args.get("gym_packages") or [], "gym_packages in args.yml")
    if ":" in found or packages:
        needs = found.partition(":")[0] if ":" in found else ", ".join(map(str, packages))
        raise AgentError(
            f"{found} is an environment of {one_line(needs)}, and no file may say what is imported: give the id "
            f"yourself, as in --env package:{found.rpartition(':')[2]}."
        )
    return found


def _normalized(model: Any, settings: Path, folder: Path, config: dict[str, Any]) -> Any:
    """The agent, with the normalization of its training."""
    files = [place / "vecnormalize.pkl" for place in (settings, folder)]
    statistics = next((load_statistics(file) for file in files if file.is_file()), None)
    if statistics is not None:
        return NormalizedPolicy(model, statistics)
    if _normalizes(plain(config.get("normalize"), "normalize in config.yml")):
        raise AgentError("config.yml says that observations were normalized, and there is no vecnormalize.pkl.")
    return model


def _normalizes(setting: Any) -> bool:
    """Whether observations were normalized: true, or a dict in a string, such as "{'norm_obs': False}"."""
    if isinstance(setting, str):
        try:
            setting = ast.literal_eval(setting.strip().removeprefix("dict"))
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            return True  # a call of dict; who knows
    return bool(setting.get("norm_obs", True)) if isinstance(setting, dict) else bool(setting)


def _wrappers(setting: Any) -> tuple[tuple[Any, dict[str, Any]], ...]:
    """Wrappers with their arguments, from one name or a list of names and of mappings from a name to arguments."""
    entries = setting if isinstance(setting, list) else [] if setting is None else [setting]
    found = []
    for entry in entries:
        named = entry if isinstance(entry, dict) else {entry: {}}
        for name, kwargs in named.items():
            if not isinstance(kwargs or {}, dict):
                raise AgentError(f"config.yml gives {name} no named arguments: expected names and values.")
            found.append((_wrapper(str(name)), dict(kwargs or {})))
    return tuple(found)


def _wrapper(name: str) -> Any:
    """The class of a wrapper, if it is one of `WRAPPERS`."""
    module, _, kind = name.rpartition(".")
    module = next((new + module.removeprefix(old) for old, new in _RENAMED.items() if module.startswith(old)), module)
    module = "gymnasium.wrappers" if module.startswith("gymnasium.wrappers.") else module
    if kind not in WRAPPERS.get(module, ()):
        raise AgentError(f"config.yml asks for the wrapper {one_line(name)}, which is not a known one: {BY_HAND}.")
    if importlib.util.find_spec(module.partition(".")[0]) is None:
        raise AgentError(f"config.yml asks for the wrapper {name}, which needs the package {module.partition('.')[0]}.")
    found = getattr(importlib.import_module(module), kind, None)
    if found is None:
        raise AgentError(f"config.yml asks for the wrapper {name}, which the installed release of {module} lacks.")
    return found
