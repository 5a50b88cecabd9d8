"""Whole local files: right at every size, errors that name the file, nothing left open."""

from __future__ import annotations

import os
import sys
import threading

import numpy as np
import pytest

from dataio.io import resolve
from dataio.io.errors import ReadError
from dataio.io.ranges import open_ranges
from dataio.io.resolve import SEEK_LIMIT, read_file, read_source

SIZES = (0, 1, 4095, 18_000, SEEK_LIMIT, SEEK_LIMIT + 1)
PSEUDO_FILE = "/sys/devices/system/cpu/online"
DATA = np.random.default_rng(0).integers(0, 256, max(SIZES), np.uint8)

linux = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and the devices of Linux")


@pytest.fixture
def file(tmp_path):
    """Writes the first `size` bytes of DATA and gives the path."""

    def write(size):
        path = tmp_path / "file.bin"
        path.write_bytes(DATA[:size].tobytes())
        return str(path)

    return write


@pytest.mark.parametrize("size", SIZES)
def test_a_file_of_any_size_is_read_whole(file, size):
    np.testing.assert_array_equal(read_source(file(size)), DATA[:size])


@pytest.mark.parametrize("size", SIZES)
def test_what_is_read_is_fresh_writable_and_owns_its_memory(file, size):
    path = file(size)
    data = read_file(path)
    assert (data.dtype, data.ndim, data.flags.writeable, data.flags.owndata) == (np.uint8, 1, True, True)
    data[:] = 7
    np.testing.assert_array_equal(read_file(path), DATA[:size])


@pytest.mark.parametrize("size", SIZES[1:])
def test_a_system_that_gives_little_at_a_time_is_asked_again(file, size, monkeypatch):
    preadv = os.preadv

    def little(descriptor, buffers, offset):
        return preadv(descriptor, [memoryview(buffers[0])[: max(1, size // 3)]], offset)

    monkeypatch.setattr(os, "preadv", little)
    np.testing.assert_array_equal(read_file(file(size)), DATA[:size])


@pytest.mark.parametrize("size", [18_000, SEEK_LIMIT + 1])
def test_a_file_that_shrinks_while_it_is_read_is_an_error(file, size, monkeypatch):
    path = file(size)
    preadv = os.preadv

    def shrinking(descriptor, buffers, offset):
        os.truncate(path, 100)
        return preadv(descriptor, buffers, offset)

    monkeypatch.setattr(os, "preadv", shrinking)
    with pytest.raises(ReadError, match=r"file\.bin' ended at byte 100 while it was read"):
        read_file(path)


@pytest.mark.parametrize("end", [0, 4096, 2**63 - 1, OSError("no seeking")])
def test_a_directory_is_refused_by_name_whatever_end_it_claims(tmp_path, end, monkeypatch):
    def seek(descriptor, position, how):
        if isinstance(end, OSError):
            raise end
        return end if how == os.SEEK_END else position

    monkeypatch.setattr(os, "lseek", seek)
    with pytest.raises(IsADirectoryError) as caught:
        read_file(str(tmp_path))
    assert caught.value.filename == str(tmp_path)


def test_a_missing_file_is_refused_by_name(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nothing\.bin"):
        read_file(str(tmp_path / "nothing.bin"))


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission_is_refused_by_name(file):
    path = file(10)
    os.chmod(path, 0)
    with pytest.raises(PermissionError, match=r"file\.bin"):
        read_file(path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes")
def test_a_named_pipe_is_opened_once_and_read_to_its_end(tmp_path):
    path = str(tmp_path / "pipe")
    os.mkfifo(path)

    def write():
        with open(path, "wb") as pipe:
            pipe.write(DATA[:200_000].tobytes())  # more than a pipe holds

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    np.testing.assert_array_equal(read_file(path), DATA[:200_000])
    writer.join(10)
    assert not writer.is_alive()


@linux
@pytest.mark.timeout(20)
@pytest.mark.parametrize("read", [read_file, lambda path: read_file(path, 0, 10), lambda path: open_ranges(path)])
def test_a_named_pipe_that_nobody_writes_to_is_given_up(tmp_path, monkeypatch, read):
    """Opening one without more ado would block its thread for ever."""
    monkeypatch.setattr(resolve, "PIPE_WAIT", 0.1)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(TimeoutError, match="pipe"):
        read(str(tmp_path / "pipe"))


@linux
@pytest.mark.timeout(20)
def test_a_part_of_an_endless_device_is_read():
    assert read_file("/dev/zero", 5, 100).tolist() == [0] * 100


@pytest.mark.skipif(not os.path.exists(PSEUDO_FILE), reason="needs sysfs")
def test_an_end_that_is_a_lie_is_not_believed():
    """Files of sysfs claim a page and hold less."""
    with pytest.raises(ReadError, match="ended at byte"):
        read_file(PSEUDO_FILE)


@linux
def test_an_empty_device_is_empty():
    assert len(read_file("/dev/null")) == 0


@pytest.mark.parametrize("size", [18_000, SEEK_LIMIT + 1])
def test_a_range_is_that_part(file, size):
    np.testing.assert_array_equal(read_file(file(size), 1000, 500), DATA[1000:1500])


@pytest.mark.parametrize(("offset", "size"), [(0, 101), (100, 1), (101, 0), (101, None), (0, -1)])
def test_a_range_outside_is_an_error(file, offset, size):
    with pytest.raises(ReadError, match="outside the 100 bytes"):
        read_file(file(100), offset, size)


@linux
def test_no_descriptor_stays_open(file, tmp_path, monkeypatch):
    before = len(os.listdir("/proc/self/fd"))
    path = file(18_000)
    read_file(path)
    with pytest.raises(IsADirectoryError):
        read_file(str(tmp_path))
    monkeypatch.setattr(os, "preadv", lambda *_: 0)
    with pytest.raises(ReadError):
        read_file(path)
    assert len(os.listdir("/proc/self/fd")) == before
