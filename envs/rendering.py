"""Drawing shapes in world coordinates, as pixels or in a window; pygame is imported when needed."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from itertools import pairwise
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np
from gymnasium.error import DependencyNotInstalled
from numpy.typing import NDArray

Colour: TypeAlias = tuple[int, int, int]
Point: TypeAlias = tuple[float, float]

WHITE: Colour = (255, 255, 255)
INK: Colour = (45, 52, 64)
GREY: Colour = (214, 219, 226)
GREEN: Colour = (163, 208, 148)
BLUE: Colour = (58, 110, 165)
RED: Colour = (200, 80, 70)

_OVERSAMPLING = 2  # drawn larger, then shrunk: smooth edges


class Canvas:
    """A picture to draw on; x grows to the right, y upwards.

    Parameters
    ----------
    width, height : float
        Size of the visible part of the world, which starts at `origin`.
    origin : tuple of 2 floats
        World coordinates of the lower left corner.
    scale : float
        Pixels per unit of length.
    """

    def __init__(self, width: float, height: float, *, origin: Point = (0.0, 0.0), scale: float = 1.0) -> None:
        self._pygame = _load_pygame()
        self._size = round(width * scale), round(height * scale)
        self._scale = scale * _OVERSAMPLING
        self._left, self._top = origin[0], origin[1] + height
        self._surface = self._pygame.Surface([n * _OVERSAMPLING for n in self._size])
        self._surface.fill(WHITE)

    def rectangle(self, corner: Point, width: float, height: float, colour: Colour) -> None:
        """Filled rectangle with its lower left corner at `corner`."""
        x, y = corner
        corners = [(x, y), (x + width, y), (x + width, y + height), (x, y + height)]
        self.polygon(corners, colour)

    def polygon(self, points: Iterable[Point], colour: Colour) -> None:
        """Filled polygon."""
        self._pygame.draw.polygon(self._surface, colour, [self._pixel(p) for p in points])

    def disc(self, centre: Point, radius: float, colour: Colour) -> None:
        """Filled circle."""
        self._pygame.draw.circle(self._surface, colour, self._pixel(centre), radius * self._scale)

    def path(self, points: Sequence[Point], width: float, colour: Colour) -> None:
        """Line through the points, with round joints and ends."""
        for start, end in pairwise(points):
            self._stroke(np.asarray(start), np.asarray(end), width, colour)
        for point in points:
            self.disc(point, width / 2, colour)

    def _stroke(self, start: NDArray[Any], end: NDArray[Any], width: float, colour: Colour) -> None:
        along = (end - start) / max(np.hypot(*(end - start)), 1e-12)
        across = np.array([-along[1], along[0]]) * width / 2
        corners = (start + across, end + across, end - across, start - across)
        self.polygon([(c[0], c[1]) for c in corners], colour)

    def _pixel(self, point: Point) -> Point:
        return (point[0] - self._left) * self._scale, (self._top - point[1]) * self._scale

    def pixels(self) -> NDArray[np.uint8]:
        """The picture, an array of shape (height, width, 3)."""
        small = self._pygame.transform.smoothscale(self._surface, self._size)
        pixels: NDArray[np.uint8] = np.swapaxes(self._pygame.surfarray.array3d(small), 0, 1)
        return np.ascontiguousarray(pixels)


class Window:
    """A window on the screen that the first picture opens. Copies and pickles are closed."""

    def __init__(self) -> None:
        self._screen: Any = None
        self._clock: Any = None

    def show(self, pixels: NDArray[np.uint8], fps: int) -> None:
        """Show a picture of shape (height, width, 3), at most `fps` per second."""
        pygame = _load_pygame()
        if self._screen is None:
            pygame.display.init()
            self._screen = pygame.display.set_mode(pixels.shape[1::-1])
            self._clock = pygame.time.Clock()
        pygame.surfarray.blit_array(self._screen, np.swapaxes(pixels, 0, 1))
        pygame.event.pump()
        pygame.display.flip()
        self._clock.tick(fps)

    def close(self) -> None:
        """Close the window if it is open."""
        if self._screen is not None:
            _load_pygame().display.quit()
            self._screen = self._clock = None

    def __reduce__(self) -> tuple[type[Window], tuple[()]]:
        return Window, ()


def check_render_mode(render_mode: str | None, modes: list[str]) -> None:
    """Refuse an unknown render mode."""
    if render_mode is not None and render_mode not in modes:
        raise ValueError(f"render_mode: expected None or one of {modes}, got {render_mode!r}.")


def _load_pygame() -> ModuleType:
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    try:
        import pygame
    except ImportError as error:
        raise DependencyNotInstalled(
            'drawing needs pygame, which is not installed: run `pip install "gptd-rl[render]"`.'
        ) from error
    return pygame
