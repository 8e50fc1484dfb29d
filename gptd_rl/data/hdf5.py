"""HDF5 files of others: refused if they refer to further files, which reading them would open."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any


def refuse_links(path: Path, names: Iterable[str]) -> None:
    """Refuse soft and external links, virtual datasets and external storage below some groups of a file.

    Parameters
    ----------
    path : Path
    names : iterable of str
        Groups at the root of the file; those that do not exist are left out.

    Raises
    ------
    ValueError
        If something below a group refers to another place.
    """
    import h5py

    with h5py.File(path, "r") as file:
        seen: set[int] = set()
        pending = [(file, name) for name in names if name in file.keys()]  # noqa: SIM118  (`in file` follows links)
        while pending:
            group, name = pending.pop()
            item = _hard_linked(group, name, path)
            address = h5py.h5o.get_info(item.id).addr
            if isinstance(item, h5py.Group) and address not in seen:  # hard links may form a circle
                seen.add(address)
                pending += [(item, key) for key in item]
            if isinstance(item, h5py.Dataset) and (item.is_virtual or item.external):
                raise ValueError(f"{path}: {item.name} takes its numbers from other files, which is not supported.")


def _hard_linked(group: Any, name: str, path: Path) -> Any:
    import h5py

    link = group.get(name, getlink=True)
    if not isinstance(link, h5py.HardLink):
        target = f"{getattr(link, 'filename', '')}:{getattr(link, 'path', '')}"
        raise ValueError(f"{path}: {group.name}/{name} is a link to {target}, and links are not followed.")
    return group[name]
