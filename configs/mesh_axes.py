"""Sizes of the mesh axes: filling in -1 and checking the product, as plain arithmetic (no JAX)."""

from __future__ import annotations

import math
from collections.abc import Mapping

from configs.words import counted

FILL = -1  # an axis of this size takes the devices that the others leave


def resolve_axes(sizes: Mapping[str, int], num_devices: int) -> dict[str, int]:
    """Returns the axis sizes with -1 filled in; their product is `num_devices`.

    `{"data": -1, "context": 2}, 8 -> {"data": 4, "context": 2}`

    Raises ValueError, with the equation and a way out, when a size is neither positive nor -1,
    when several are -1, or when the product is not the number of devices.
    """
    wrong = [f"{name}={size}" for name, size in sizes.items() if size < 1 and size != FILL]
    if wrong:
        raise ValueError(
            f"mesh axis {', '.join(wrong)}: a size is a positive number, or -1 to take what is left"
        )
    open_axes = [name for name, size in sizes.items() if size == FILL]
    if len(open_axes) > 1:
        raise ValueError(
            f"mesh axes {' and '.join(open_axes)} are both -1; one at most can take what is left"
        )
    known = math.prod(size for size in sizes.values() if size != FILL)
    if not open_axes and known != num_devices:
        raise ValueError(
            f"{_equation(sizes)}, but {_are_here(num_devices)}; {_way_out(sizes, num_devices)}"
        )
    if open_axes and num_devices % known:
        raise ValueError(
            f"{_equation(sizes)} does not divide the {counted(num_devices, 'device')} here, so "
            f"that {open_axes[0]}=-1 has no value; {_way_out(sizes, num_devices)}"
        )
    return {name: num_devices // known if size == FILL else size for name, size in sizes.items()}


def _equation(sizes: Mapping[str, int]) -> str:
    """`data(2) * context(4) = 8`; axes of size 1 are left out, unless all are."""
    known = {name: size for name, size in sizes.items() if size != FILL}
    shown = {name: size for name, size in known.items() if size != 1} or known
    factors = " * ".join(f"{name}({size})" for name, size in shown.items())
    return f"{factors} = {math.prod(shown.values())}"


def _are_here(num_devices: int) -> str:
    return f"{counted(num_devices, 'device')} {'is' if num_devices == 1 else 'are'} here"


def _way_out(sizes: Mapping[str, int], num_devices: int) -> str:
    """Names the one change of one axis that is nearest to what was asked, or the general rule."""
    fits = [
        (size == 1, _distance(size, new), name != "fsdp", name, new)
        for name, size in sizes.items()
        if size != FILL
        for new in _fitting_sizes(sizes, name, num_devices)
    ]
    if fits:
        *_, name, new = min(fits)
        return f"{name}={new} would fit"
    divisors = [str(d) for d in range(1, num_devices + 1) if num_devices % d == 0]
    return f"with one axis at -1, the product of the others may be {', '.join(divisors)}"


def _fitting_sizes(sizes: Mapping[str, int], name: str, num_devices: int) -> list[int]:
    """The sizes that axis `name` could take, the other axes unchanged."""
    others = math.prod(size for other, size in sizes.items() if other != name and size != FILL)
    if num_devices % others:
        return []
    rest = num_devices // others
    if FILL not in sizes.values():
        return [rest]
    return [size for size in range(1, rest + 1) if rest % size == 0]


def _distance(old: int, new: int) -> float:
    return abs(math.log(new / old))
