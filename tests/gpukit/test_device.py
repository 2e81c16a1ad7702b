"""gpukit.device: every attribute in its field and unit, the documents' table, the device of this machine."""

import dataclasses
import shutil
import subprocess
from types import SimpleNamespace

import pytest

from gpukit import device, emulator
from gpukit.backend import cuda, on_gpu
from gpukit.device import RTX_3090, DeviceInfo, compare, info

ATTRIBUTES = {
    "L2_CACHE_SIZE": 6291456,
    "MAX_SHARED_MEMORY_PER_BLOCK": 49152,
    "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": 101376,
    "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR": 102400,
    "MAX_REGISTERS_PER_BLOCK": 65535,
    "MAX_REGISTERS_PER_MULTIPROCESSOR": 65536,
    "CLOCK_RATE": 1695000,
    "MEMORY_CLOCK_RATE": 9751000,
    "GLOBAL_MEMORY_BUS_WIDTH": 384,
    "MULTIPROCESSOR_COUNT": 82,
    "WARP_SIZE": 32,
    "MAX_BLOCKS_PER_MULTIPROCESSOR": 16,
    "MAX_THREADS_PER_MULTIPROCESSOR": 1536,
    "MAX_THREADS_PER_BLOCK": 1024,
    "MAX_BLOCK_DIM_X": 1024,
    "MAX_BLOCK_DIM_Y": 1023,
    "MAX_BLOCK_DIM_Z": 64,
    "MAX_GRID_DIM_X": 2147483647,
    "MAX_GRID_DIM_Y": 65535,
    "MAX_GRID_DIM_Z": 65534,
    "ASYNC_ENGINE_COUNT": 2,
    "CONCURRENT_KERNELS": 1,
    "UNIFIED_ADDRESSING": 0,
}
EVERY_ROW = """\
device id                        1
name                             Test GPU
compute capability               8.6
global memory                    23.70 GB
L2 cache                         6 MB
shared memory per block          48 KB
shared memory per SM             100 KB
core clock                       1.70 GHz
memory clock                     9.75 GHz
SMs                              82
warp size                        32
max blocks per SM                16
max threads per block            1024
max block dimensions             1024 x 1023 x 64
max grid dimensions              2147483647 x 65535 x 65534
shared memory per block, opt-in  99 KB
registers per block              65535
registers per SM                 65536
max threads per SM               1536
max warps per SM                 48
memory bus width                 384 bits
theoretical bandwidth            936 GB/s
copy engines                     2
concurrent kernels               yes
unified addressing               no"""


class FakeDevice(SimpleNamespace):
    """One of ``cuda.gpus``: attributes, and a context while it is entered."""

    current = None

    def __enter__(self):
        FakeDevice.current = self

    def __exit__(self, *error):
        FakeDevice.current = None

    def get_memory_info(self):
        return SimpleNamespace(free=1, total=self.total)


@pytest.fixture
def two_devices(monkeypatch):
    gpus = [
        FakeDevice(id=0, name="Other GPU", compute_capability=(7, 5), total=1, **ATTRIBUTES),
        FakeDevice(id=1, name="Test GPU", compute_capability=(8, 6), total=25447170048, **ATTRIBUTES),
    ]
    monkeypatch.setattr(device, "cuda", SimpleNamespace(gpus=gpus, current_context=lambda: FakeDevice.current))
    monkeypatch.setattr(device, "on_gpu", lambda: True)
    return gpus


def test_every_attribute_has_its_row(two_devices):
    assert str(info(1)) == EVERY_ROW
    assert info(1).core_clock == 1.695e9 and info(1).memory_bandwidth == pytest.approx(936.1e9, rel=1e-4)
    assert not info(1).emulated and info(0).compute_capability == (7, 5)


def test_what_the_driver_does_not_tell_is_none(two_devices):
    two_devices[0].CLOCK_RATE = 0
    del two_devices[0].MEMORY_CLOCK_RATE, two_devices[0].UNIFIED_ADDRESSING, two_devices[0].ASYNC_ENGINE_COUNT
    found = info(0)
    assert (found.core_clock, found.memory_clock, found.memory_bandwidth) == (None, None, None)
    assert (found.unified_addressing, found.async_engine_count) == (None, None)
    assert "clock" not in str(found) and "not stated" not in str(found)


@pytest.mark.parametrize(
    ("id", "error", "words"),
    [
        (2, ValueError, r"id is 2; the devices here are 0 \(Other GPU\), 1 \(Test GPU\)"),
        (-1, ValueError, "id is -1"),
        (1.0, TypeError, "id is 1.0; it must be an int"),
        (True, TypeError, "id is True"),
    ],
)
def test_a_wrong_id_names_what_there_is(two_devices, id, error, words):
    with pytest.raises(error, match=words):
        info(id)


def test_the_documents_device_beside_another(two_devices):
    lines = [line.split("  ") for line in str(compare(RTX_3090, info(1))).splitlines()]
    table = {cells[0]: [cell.strip() for cell in cells[1:] if cell] for cells in lines}
    assert table["global memory"] == ["23.70 GB", "23.70 GB"]
    assert table["shared memory per SM"] == ["100 KB", "100 KB"]
    assert table["core clock"] == ["1.69 GHz", "1.70 GHz"]
    assert table["max block dimensions"] == ["1024 x 1024 x 64", "1024 x 1023 x 64"]
    assert table["theoretical bandwidth"] == ["not stated", "936 GB/s"]
    assert "registers" not in str(RTX_3090) and len(str(RTX_3090).splitlines()) == 14


def test_html_is_the_same_table_and_escaped():
    page = compare(RTX_3090, DeviceInfo(0, "<script>"))._repr_html_()
    assert "&lt;script&gt;" in page and "<script" not in page
    assert page.count("<tr>") == page.count("</tr>") == len(compare(RTX_3090, DeviceInfo(0, "x")).rows())


def test_compare_takes_infos_only():
    with pytest.raises(TypeError, match="at least one"):
        compare()
    with pytest.raises(TypeError, match="argument 1 of compare is an int"):
        compare(RTX_3090, 0)


def test_the_device_of_this_machine():
    found = info()
    asked = cuda.get_current_device()
    assert (found.name, found.compute_capability) == (asked.name, tuple(asked.compute_capability))
    assert found.emulated is not on_gpu()
    assert found.warp_size == 32 and found.max_threads_per_block == 1024
    assert found.max_block_dim == (1024, 1024, 64) and found.max_grid_dim == (2**31 - 1, 65535, 65535)
    assert found.shared_memory_per_block == 49152 < found.shared_memory_per_block_optin < found.shared_memory_per_sm
    assert found.global_memory > 2**30 and found.l2_size > 2**20 and found.sm_count > 0


@pytest.mark.skipif(on_gpu(), reason="there is a GPU")
def test_the_emulated_device_says_that_it_is_one():
    assert info().emulated and "emulator" in info().name and "emulator" in str(info())


@pytest.mark.skipif(on_gpu(), reason="there is a GPU")
def test_the_emulated_8_6_is_the_documents_device():
    """What the documents print of their card holds for the emulated one of that compute capability."""
    with emulator.use_device("8.6"):
        found = info()
    for field in dataclasses.fields(RTX_3090):
        stated = getattr(RTX_3090, field.name)
        if stated is None or field.name in ("name", "emulated"):
            continue
        rounded = field.name in ("global_memory", "core_clock", "memory_clock")
        expected = pytest.approx(stated, rel=0.005) if rounded else stated
        assert getattr(found, field.name) == expected, field.name


@pytest.mark.gpu
@pytest.mark.skipif(shutil.which("nvidia-smi") is None, reason="nvidia-smi is not here")
def test_the_gpu_against_nvidia_smi():
    query = "name,memory.total,clocks.max.sm,clocks.max.memory"
    command = ["nvidia-smi", "--id=0", f"--query-gpu={query}", "--format=csv,noheader,nounits"]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    name, memory, core, memory_clock = (cell.strip() for cell in output.split(","))
    found = info()
    assert found.name == name
    assert found.global_memory / 2**20 == pytest.approx(float(memory), rel=0.03)  # the driver keeps some for itself
    if found.core_clock:
        assert found.core_clock / 1e6 == pytest.approx(float(core), rel=0.1)
    if found.memory_clock:
        assert found.memory_clock / 1e6 == pytest.approx(float(memory_clock), rel=0.1)
