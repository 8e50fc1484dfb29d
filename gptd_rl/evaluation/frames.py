"""Pictures of environments, made small: shrunk, encoded as WebP or JPEG, and bounded in bytes."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

WIDTH = 200  # pixels, about
MAX_BYTES = 1_000_000  # of all pictures together: 1.4 MB as data URIs
QUALITY = 60


def as_picture(frame: Any) -> NDArray[np.uint8]:
    """What ``render()`` returned, checked and shrunk by a whole factor, of shape (height, width, 3)."""
    pixels = np.asarray(frame)
    if pixels.ndim != 3 or pixels.shape[2] != 3 or pixels.dtype != np.uint8 or not pixels.size:
        shape = f"an array of {pixels.dtype} of shape {pixels.shape}" if pixels.ndim else type(frame).__name__
        raise TypeError(f"render() must return an array of uint8 of shape (height, width, 3); got {shape}")
    from PIL import Image

    image = Image.fromarray(pixels)
    return np.asarray(image.reduce(max(1, round(max(image.size) / WIDTH))))


def encode(
    episodes: Sequence[Sequence[NDArray[np.uint8]]], most: int = MAX_BYTES
) -> tuple[str, list[list[tuple[int, bytes]]]]:
    """Encode the pictures of several episodes.

    If they are too large together, every second picture is left out, as often as it takes.

    Parameters
    ----------
    episodes : sequence of sequences of ndarray of shape (height, width, 3)
    most : int
        Bytes of all pictures together.

    Returns
    -------
    media_type : str
    episodes : list of lists of tuples
        Index and encoded picture of those kept.
    """
    from PIL import Image, features

    kind = "WEBP" if features.check("webp") else "JPEG"
    options: dict[str, Any] = dict(method=2) if kind == "WEBP" else {}  # method: 0 is fast, 6 is small

    def encoded(pixels: NDArray[np.uint8]) -> bytes:
        buffer = io.BytesIO()
        Image.fromarray(pixels).save(buffer, kind, quality=QUALITY, **options)
        return buffer.getvalue()

    found = [[(i, encoded(pixels)) for i, pixels in enumerate(pictures)] for pictures in episodes]
    while sum(len(data) for kept in found for _, data in kept) > most and max(map(len, found)) > 1:
        found = [kept[::2] for kept in found]
    return f"image/{kind.lower()}", found
