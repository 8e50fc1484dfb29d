"""Small pictures of environments."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image, features

from gptd_rl.evaluation.frames import WIDTH, as_picture, encode


def pictures(n: int, seed: int = 0) -> list[np.ndarray]:
    """Noise, which compresses badly."""
    return list(np.random.default_rng(seed).integers(0, 256, (n, 40, 60, 3), dtype=np.uint8))


def test_as_picture_shrinks_by_a_whole_factor():
    half = np.zeros((400, 600, 3), np.uint8)
    half[:, 300:] = 255
    small = as_picture(half)
    assert small.shape == (134, 200, 3) and WIDTH == 200
    assert (small[:, :100] == 0).all() and (small[:, 100:] == 255).all()
    tiny = np.full((20, 30, 3), 7, np.uint8)
    assert (as_picture(tiny) == tiny).all()


@pytest.mark.parametrize("frame", [None, [], "text", np.zeros((4, 4), np.uint8), np.zeros((4, 4, 3)),
                                   np.zeros((0, 4, 3), np.uint8), [np.zeros((4, 4, 3), np.uint8)]])  # fmt: skip
def test_as_picture_refuses_others(frame):
    with pytest.raises(TypeError, match=r"render\(\) must return an array of uint8 of shape \(height, width, 3\); got"):
        as_picture(frame)


@pytest.mark.parametrize(
    ("has_webp", "media_type", "kind"), [(True, "image/webp", "WEBP"), (False, "image/jpeg", "JPEG")]
)
def test_encode(monkeypatch, has_webp: bool, media_type: str, kind: str):
    if has_webp and not features.check("webp"):
        pytest.skip("this Pillow has no WebP")
    monkeypatch.setattr(features, "check", lambda name: has_webp)
    plain = np.full((20, 30, 3), 90, np.uint8)
    found, (one, two) = encode([[plain, plain], [plain]])
    assert found == media_type and [i for i, _ in one] == [0, 1] and [i for i, _ in two] == [0]
    with Image.open(io.BytesIO(two[0][1])) as picture:
        assert picture.format == kind and picture.size == (30, 20)
        assert np.abs(np.asarray(picture, dtype=float) - 90).max() < 8


def test_encode_is_bounded_in_bytes():
    everything = encode([pictures(16), pictures(9, 1)])[1]
    total = sum(len(data) for kept in everything for _, data in kept)
    fewer = encode([pictures(16), pictures(9, 1)], most=total // 3)[1]
    assert sum(len(data) for kept in fewer for _, data in kept) <= total // 3
    assert [i for i, _ in fewer[0]] == [0, 4, 8, 12] and [i for i, _ in fewer[1]] == [0, 4, 8]
    assert [len(kept) for kept in encode([pictures(5)], most=1)[1]] == [1]  # one picture is kept
