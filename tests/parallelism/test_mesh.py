"""Mesh axes: what fills, what is refused and in which words, and that no device stays idle."""

import subprocess
import sys

import jax
import pytest

from parallelism import AXES, make_mesh, resolve_axes, simulate_cpu_devices


@pytest.mark.parametrize(
    ("sizes", "num_devices", "expected"),
    [
        ({"data": -1, "context": 2}, 8, {"data": 4, "context": 2}),
        ({"data": 2, "context": -1}, 2, {"data": 2, "context": 1}),
        ({"data": 2, "context": 3}, 6, {"data": 2, "context": 3}),
        ({"context": -1}, 1, {"context": 1}),
    ],
)
def test_one_axis_takes_what_the_others_leave(sizes, num_devices, expected):
    assert resolve_axes(sizes, num_devices) == expected


@pytest.mark.parametrize(
    ("sizes", "num_devices", "message"),
    [
        (
            {"data": 2, "fsdp": 1, "context": 4},
            6,
            "data(2) * context(4) = 8, but 6 devices are here; context=3 would fit",
        ),
        ({"data": 3}, 8, "data(3) = 3, but 8 devices are here; data=8 would fit"),
        ({"data": 16}, 8, "data(16) = 16, but 8 devices are here; data=8 would fit"),
        ({"data": 2}, 1, "data(2) = 2, but 1 device is here; data=1 would fit"),
        (
            {"data": 1, "fsdp": 1},
            8,
            "data(1) * fsdp(1) = 1, but 8 devices are here; fsdp=8 would fit",
        ),
        (
            {"data": -1, "context": 3},
            8,
            "context(3) = 3 does not divide the 8 devices here, so that data=-1 has no value; "
            "context=4 would fit",
        ),
        (
            {"data": 3, "context": 5},
            8,
            "data(3) * context(5) = 15, but 8 devices are here; with one axis at -1, the product "
            "of the others may be 1, 2, 4, 8",
        ),
        ({"data": -1, "context": -1}, 8, "mesh axes data and context are both -1"),
        ({"data": 0}, 8, "mesh axis data=0: a size is a positive number, or -1"),
        ({"data": -2}, 8, "mesh axis data=-2: a size is a positive number, or -1"),
    ],
)
def test_a_wrong_product_is_refused_with_the_equation_and_a_way_out(sizes, num_devices, message):
    with pytest.raises(ValueError) as error:
        resolve_axes(sizes, num_devices)
    assert message in str(error.value)


def test_the_mesh_has_every_axis_and_every_device_once():
    mesh = make_mesh({"context": 2, "fsdp": -1})
    assert mesh.axis_names == AXES
    assert dict(mesh.shape) == {
        "data": 1,
        "fsdp": 4,
        "expert": 1,
        "context": 2,
        "tensor": 1,
    }
    assert set(mesh.devices.flat) == set(jax.devices())


def test_six_devices_make_a_context_of_three():
    mesh = make_mesh({"data": 2, "context": 3}, jax.devices()[:6])
    assert set(mesh.devices.flat) == set(jax.devices()[:6])


@pytest.mark.parametrize("size", [3, 4, 16])
def test_a_mesh_that_would_leave_devices_idle_is_refused(size):
    with pytest.raises(ValueError, match=f"data\\({size}\\) = {size}, but 8 devices are here"):
        make_mesh({"data": size})


def test_simulating_after_jax_has_started_says_so():
    assert jax.device_count() == 8
    simulate_cpu_devices(8)  # what is already there is no error
    with pytest.raises(RuntimeError, match="already runs on 8 cpu device"):
        simulate_cpu_devices(4)
    with pytest.raises(ValueError, match="cannot simulate 0 devices"):
        simulate_cpu_devices(0)


def test_importing_starts_no_backend_so_that_devices_can_still_be_simulated():
    code = (
        "import jax; from parallelism import make_mesh, simulate_cpu_devices;"
        "simulate_cpu_devices(5); assert make_mesh({'context': -1}).shape['context'] == 5"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
