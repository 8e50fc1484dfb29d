"""Saving and loading: the same predictions afterwards, only arrays in the file, and clear words about bad ones."""

import json
import os
import zipfile
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import gptd_rl
from gptd_rl import ARD, GPTD, GPTDQ, DynamicsModel, FactorAnalysis, Isotropic, OnlineGPTD, Trajectories
from gptd_rl.estimators.storage import storable
from gptd_rl.kernels import Kernel, paper_kernel
from tests.helpers import MIXES, assert_same, sample
from tests.mdps import Gridworld

DATA = sample(MIXES["mixed"], seed=1)
X = np.random.default_rng(0).normal(size=(7, 3))


def with_actions(shape: tuple[int, ...]) -> Trajectories:
    actions = np.arange(len(DATA) * int(np.prod(shape))).reshape(len(DATA), *shape)
    return Trajectories(DATA.states, DATA.rewards, DATA.discounts, DATA.lengths, DATA.terminated, actions)


def quick(kernel: str | Kernel = "isotropic", **options: Any) -> GPTD:
    defaults: dict[str, Any] = dict(objective="marginal_likelihood", n_restarts=0, noise_floor=1e-2)
    return GPTD(kernel, **(defaults | options))


MODELS = {
    "isotropic": lambda: quick().fit(DATA),
    "ard": lambda: quick("ard").fit(DATA),
    "factor": lambda: quick("factor", max_rank=2).fit(DATA),
    "auto": lambda: quick("auto", max_rank=1).fit(DATA),
    "deterministic": lambda: quick(noise="deterministic").fit(DATA),
    "thinned": lambda: quick(objective="thinned", thinning=2).fit(DATA),
    "loo": lambda: quick(objective="loo").fit(DATA),
    "held noise": lambda: quick(noise_variance=0.3).fit(DATA),
    "pruned": lambda: quick("ard").fit(Gridworld().sample(60, np.random.default_rng(0))).prune(),
    "kernel object": lambda: quick(
        paper_kernel(ARD([1.0, 0.0, 2.0]), 2.0, 0.0, fixed=("v0", "a3")), noise_variance=0.1
    ).fit(DATA),
    "isotropic object": lambda: quick(paper_kernel(Isotropic(0.3, 3), fixed=("b",))).fit(DATA),
    "factor object": lambda: quick(
        paper_kernel(FactorAnalysis(np.ones(3), [[1.0, 0.5], [-2.0, 0.0], [0.5, 1.0]]), fixed=("m1_1", "a2"))
    ).fit(DATA),
    "actions": lambda: quick().fit(with_actions(())),
    "vector actions": lambda: quick().fit(with_actions((2,))),
}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "v.gptd"


@pytest.fixture
def saved(path):
    """A file with a model in it."""
    MODELS["isotropic"]().save(path)
    return path


# -------------------------------------------------------------------------------------- there and back


@pytest.mark.parametrize("name", MODELS)
def test_round_trip(name, path):
    v = MODELS[name]()
    assert v.save(path) == path
    w = gptd_rl.load(path)
    x = X[:, : v.n_dims_]
    for mine, theirs in zip(v.predict(x, return_std=True), w.predict(x, return_std=True), strict=True):
        assert_allclose(theirs, mine, rtol=1e-12, atol=1e-12)
    for mine, theirs in zip(v.confidence_interval(x, 0.8), w.confidence_interval(x, 0.8), strict=True):
        assert_allclose(theirs, mine, rtol=1e-12, atol=1e-12)
    assert_array_equal(w.theta_, v.theta_)
    assert w.parameter_names_ == v.parameter_names_
    assert_array_equal(w.relevances_, v.relevances_)
    assert_array_equal(w.inputs_, v.inputs_)
    assert w.thinning_ == v.thinning_
    assert w.noise_variance_ == pytest.approx(v.noise_variance_, rel=1e-14)
    assert w.log_marginal_likelihood_ == pytest.approx(v.log_marginal_likelihood_, rel=1e-12)
    assert w.kernel_.fixed == v.kernel_.fixed
    assert_array_equal(w.model_.is_free, v.model_.is_free)
    assert_same(w.data_, v.data_)
    # what was asked for is the same, too
    asked, told = v.get_params(), w.get_params()
    if isinstance(v.kernel, Kernel):
        a, b = asked.pop("kernel"), told.pop("kernel")
        assert type(a.metric) is type(b.metric)
        assert a.fixed == b.fixed and a.parameter_names == b.parameter_names
        assert_allclose(b.theta, a.theta, rtol=1e-14)
    assert told == asked


def test_a_loaded_model_can_be_saved_pruned_and_fitted_again(tmp_path):
    data = Gridworld().sample(100, np.random.default_rng(0))
    v = quick("ard", warm_start=True).fit(data)
    w = gptd_rl.load(v.save(tmp_path / "a.gptd"))
    again = gptd_rl.load(w.save(tmp_path / "b.gptd"))
    assert_array_equal(again.theta_, v.theta_)
    assert_array_equal(again.prune().inputs_, v.prune().inputs_)
    assert_allclose(again.fit(data).log_marginal_likelihood_, v.log_marginal_likelihood_, atol=0.05)


def test_a_loaded_model_looks_like_the_saved_one(path):
    v = MODELS["isotropic"]()
    v.save(path)
    assert repr(gptd_rl.load(path)) == repr(v)


def test_paths_may_be_strings(tmp_path):
    name = str(tmp_path / "model with spaces")
    MODELS["isotropic"]().save(name)
    assert os.path.exists(name), "no ending is added behind the user's back"
    gptd_rl.load(name)


@pytest.mark.parametrize(
    "options", [dict(random_state=np.int64(3)), dict(n_restarts=np.int32(1)), dict(noise_variance=np.float32(0.25))]
)
def test_numbers_of_numpy_are_numbers(options, path):
    v = quick(**options).fit(DATA)
    w = gptd_rl.load(v.save(path))
    (name,) = options
    assert getattr(w, name) == options[name]


# -------------------------------------------------------------------------------------- what is in the file


@pytest.mark.parametrize("name", ["factor", "pruned", "kernel object", "vector actions"])
def test_the_file_holds_arrays_and_json_and_nothing_to_unpickle(name, path):
    MODELS[name]().save(path)
    with zipfile.ZipFile(path) as archive:
        assert all(member.endswith(".npy") for member in archive.namelist())
    with np.load(path, allow_pickle=False) as archive:
        members = {member: archive[member] for member in archive.files}
    assert all(array.dtype.kind in "fiubU" for array in members.values())
    header = json.loads(str(members["header"]))
    assert header["format"] == "gptd-rl model"
    assert header["version"] == 3


def test_actions_that_only_pickle_could_keep_are_refused(path):
    actions = np.array([None] * len(DATA), dtype=object)
    odd = Trajectories(DATA.states, DATA.rewards, DATA.discounts, DATA.lengths, DATA.terminated, actions)
    with pytest.raises(ValueError, match="allow_pickle"):
        quick().fit(odd).save(path)
    assert list(path.parent.iterdir()) == []


def test_the_file_has_the_permissions_of_any_other(path):
    """Not those of a temporary file: what is saved for a colleague can be read by the colleague."""
    plain = path.parent / "plain"
    plain.write_text("x")
    MODELS["isotropic"]().save(path)
    assert path.stat().st_mode == plain.stat().st_mode


# -------------------------------------------------------------------------------------- bad files


@pytest.mark.parametrize("share", [0.0, 0.001, 0.1, 0.5, 0.9, 0.99, 0.9999])
def test_a_truncated_file_is_called_that(share, saved):
    content = saved.read_bytes()
    saved.write_bytes(content[: int(share * len(content))])
    with pytest.raises(ValueError, match=r"v\.gptd is not a gptd-rl model, or was cut off"):
        gptd_rl.load(saved)


def test_a_file_damaged_anywhere_loads_or_says_so(saved):
    content = saved.read_bytes()
    n_refused = 0
    for place in range(0, len(content), 23):
        damaged = bytearray(content)
        damaged[place] ^= 0xFF
        saved.write_bytes(bytes(damaged))
        try:
            gptd_rl.load(saved)  # a byte that does not matter, such as a date
        except ValueError as error:
            n_refused += "v.gptd" in str(error)
    assert n_refused > 0.3 * len(content) / 23


def write_npz(path, **arrays) -> None:
    with path.open("wb") as file:
        np.savez(file, **arrays)


def write_npy(path, array) -> None:
    with path.open("wb") as file:
        np.save(file, array, allow_pickle=True)


def write_zip(path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("letter.txt", "Dear reader,")


FOREIGN = {
    "zip": write_zip,
    "npz": lambda path: write_npz(path, weights=np.ones(3)),
    "npy": lambda path: write_npy(path, np.ones(3)),
    "other header": lambda path: write_npz(path, header=np.array(json.dumps(dict(format="other", version=1)))),
    "header that is no JSON": lambda path: write_npz(path, header=np.array("{")),
    "header that is a list": lambda path: write_npz(path, header=np.array("[1]")),
    "pickle": lambda path: write_npy(path, np.array([{}], dtype=object)),
    "text": lambda path: path.write_text("Dear reader,\n"),
    "empty": lambda path: path.write_bytes(b""),
    "noise": lambda path: path.write_bytes(np.random.default_rng(0).bytes(5000)),
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_a_foreign_file_is_called_that(kind, path):
    FOREIGN[kind](path)
    with pytest.raises(ValueError, match=r"v\.gptd is not a gptd-rl model"):
        gptd_rl.load(path)


def rewrite(path, **changed) -> None:
    """Write the model at `path` again with another header."""
    with np.load(path) as archive:
        members = {name: archive[name] for name in archive.files}
    header = json.loads(str(members.pop("header"))) | changed
    header = {name: value for name, value in header.items() if value is not None}
    write_npz(path, header=np.array(json.dumps(header)), **members)


def test_a_newer_version_asks_for_an_upgrade(saved):
    rewrite(saved, version=4)
    with pytest.raises(ValueError, match=r"format version 4, this release reads up to 3: upgrade"):
        gptd_rl.load(saved)


@pytest.mark.parametrize("version", [1, 2])
def test_load_refuses_versions_that_were_never_released(version, saved):
    rewrite(saved, version=version)
    with pytest.raises(ValueError, match=rf"format version is {version}, of an unreleased gptd-rl"):
        gptd_rl.load(saved)


def test_a_rewritten_file_loads(saved):
    """What the tests around this one change is all that is wrong with their files."""
    expected = gptd_rl.load(saved).predict(X)
    rewrite(saved)
    assert_array_equal(gptd_rl.load(saved).predict(X), expected)


@pytest.mark.parametrize("options", [dict(), dict(method="sparse", subset_size=5)], ids=["exact", "sparse"])
def test_load_reads_files_of_release_0_1(options, path):
    """They know nothing of bootstrapping, and leave the evidence to be computed again."""
    v = quick(**options).fit(DATA)
    v.save(path)
    params = v.to_arrays()[0]["params"]
    del params["bootstrap"]
    rewrite(path, bootstrap=None, evidence=None, params=params)
    old = gptd_rl.load(path)
    assert_allclose(old.predict(X), v.predict(X), rtol=1e-12)
    assert old.log_marginal_likelihood_ == pytest.approx(v.log_marginal_likelihood_, rel=1e-10)
    assert not old.bootstrap_


@pytest.mark.parametrize("missing", ["version", "params", "kernel", "thinning"])
def test_a_header_with_something_missing_is_no_model(missing, saved):
    rewrite(saved, **{missing: None})
    with pytest.raises(ValueError, match=r"v\.gptd is not a gptd-rl model"):
        gptd_rl.load(saved)


def test_arrays_that_are_missing_make_no_model(saved):
    with np.load(saved) as archive:
        members = {name: archive[name] for name in archive.files if name != "states"}
    write_npz(saved, **members)
    with pytest.raises(ValueError, match=r"v\.gptd is not a gptd-rl model"):
        gptd_rl.load(saved)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no file .*nowhere\.gptd"):
        gptd_rl.load(tmp_path / "nowhere.gptd")


# -------------------------------------------------------------------------------------- atomic writing


@pytest.mark.parametrize("broken", ["np.savez_compressed", "os.replace"])
@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()])
def test_a_failure_in_the_middle_leaves_the_old_file_and_no_other(broken, error, saved, monkeypatch):
    before = saved.read_bytes()

    def write_a_little(file, *args, **kwargs):
        file.write(b"half a mo")
        raise error

    def fail(*args, **kwargs):
        raise error

    owner, name = broken.split(".")
    target = dict(np=np, os=os)[owner]
    monkeypatch.setattr(target, name, write_a_little if owner == "np" else fail)
    with pytest.raises(type(error)):
        MODELS["ard"]().save(saved)
    monkeypatch.undo()
    assert saved.read_bytes() == before
    assert [p.name for p in saved.parent.iterdir()] == ["v.gptd"]
    gptd_rl.load(saved)


def test_saving_over_an_old_file_replaces_it(saved):
    v = MODELS["ard"]()
    v.save(saved)
    assert gptd_rl.load(saved).parameter_names_ == v.parameter_names_
    assert [p.name for p in saved.parent.iterdir()] == ["v.gptd"]


def test_saving_before_fitting(path):
    with pytest.raises(ValueError, match="call fit"):
        GPTD().save(path)
    assert not path.exists()


def test_saving_into_a_folder_that_is_not_there_names_it(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        MODELS["isotropic"]().save(tmp_path / "nowhere" / "v.gptd")


# -------------------------------------------------------------------------------------- subclasses


@pytest.mark.parametrize("base", [GPTD, GPTDQ, OnlineGPTD, DynamicsModel])
def test_save_refuses_a_subclass(base, path):
    """It would come back as its base."""
    for name in ("Own", base.__name__):
        subclass = type(name, (base,), {"_check_fitted": lambda self: None})
        estimator = subclass(paper_kernel(ARD([1.0])), 0.1) if base is OnlineGPTD else subclass()
        with pytest.raises(TypeError, match=rf"^class {name} is not registered, so it cannot be saved: save one of "):
            estimator.save(path)
    assert not list(path.parent.iterdir())


def test_storable_refuses_another_class_of_the_same_name():
    with pytest.raises(ValueError, match="can be saved under this name already"):
        storable(type("GPTD", (GPTD,), {}))
