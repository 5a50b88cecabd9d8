"""TFRecord files: framing, Examples, compression, damage."""

from __future__ import annotations

import gzip
import io
import logging
import struct
import zlib
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dataio
from dataio.engine.errors import OpError
from dataio.formats.tfrecord.example import encode_example, parse_example
from dataio.formats.tfrecord.files import iter_payloads
from dataio.formats.tfrecord.framing import TFRecordCutError, TFRecordError


def masked(data: bytes) -> bytes:
    crc = google_crc32c.value(data)
    return struct.pack("<I", (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF)


def record(payload: bytes) -> bytes:
    length = struct.pack("<Q", len(payload))
    return length + masked(length) + payload + masked(payload)


EXAMPLE = {"image": [b"\xff\xd8", b""], "label": [3, -(2**63)], "weight": [0.5, float("inf")], "none": []}
PAYLOADS = [bytes([65 + number]) * (10 + 7 * number) for number in range(6)]
STREAM = b"".join(map(record, PAYLOADS))
STARTS = [sum(16 + len(one) for one in PAYLOADS[:number]) for number in range(7)]


def payloads(source: Any, **options: Any) -> list[bytes]:
    return [payload for _, _, payload in iter_payloads(source, **options)]


# ------------------------------------------------------------------------- whole files


@pytest.mark.parametrize("compression", [None, "gzip", "zlib"])
@pytest.mark.parametrize("place", ["local", "s3"])
def test_examples_come_back(place: str, compression: str | None, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    path = str(tmp_path / "a.tfrecord") if place == "local" else request.getfixturevalue("s3_bucket") + "/a.tfrecord"
    dataio.write_tfrecord(path, [EXAMPLE, {"label": 1}, b""], compression=compression)
    assert dataio.read_tfrecord(path) == [EXAMPLE, {"label": [1]}, {}]
    assert dataio.read_tfrecord(path, compression=compression) == [EXAMPLE, {"label": [1]}, {}]


def test_the_framing_is_that_of_the_format(tmp_path: Path) -> None:
    dataio.write_tfrecord(tmp_path / "a", PAYLOADS)
    assert (tmp_path / "a").read_bytes() == STREAM


def test_another_reader_and_writer_agree(tmp_path: Path) -> None:
    from tfrecord.reader import tfrecord_loader
    from tfrecord.writer import TFRecordWriter

    dataio.write_tfrecord(tmp_path / "ours", [{"image": b"abc", "label": [1, -2]}])
    (theirs,) = tfrecord_loader(str(tmp_path / "ours"), None, {"image": "byte", "label": "int"})
    assert bytes(theirs["image"]) == b"abc"
    assert theirs["label"].tolist() == [1, -2]
    writer = TFRecordWriter(str(tmp_path / "theirs"))
    writer.write({"image": (b"abc", "byte"), "x": ([0.5, 2.0], "float"), "label": (7, "int")})
    writer.close()
    assert dataio.read_tfrecord(tmp_path / "theirs") == [{"image": [b"abc"], "label": [7], "x": [0.5, 2.0]}]


@pytest.mark.parametrize(
    "source",
    [STREAM, bytearray(STREAM), memoryview(STREAM), io.BytesIO(STREAM), gzip.compress(STREAM), zlib.compress(STREAM), gzip.compress(STREAM[:41]) + gzip.compress(STREAM[41:])],
    ids=["bytes", "bytearray", "memoryview", "file", "gzip", "zlib", "members"],
)
def test_every_kind_of_source_is_read(source: Any) -> None:
    assert payloads(source) == PAYLOADS


def test_a_reader_is_a_source(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(STREAM)
    assert payloads(dataio.reader(str(tmp_path / "a"))) == PAYLOADS


@pytest.mark.parametrize("length", [376, 94 * 256 + 120])
def test_a_length_that_looks_like_zlib_is_none(length: int) -> None:
    assert payloads(record(bytes(length))) == [bytes(length)]


def test_an_empty_file_yields_nothing(tmp_path: Path) -> None:
    dataio.write_tfrecord(tmp_path / "a", [])
    assert (tmp_path / "a").read_bytes() == b""
    assert dataio.read_tfrecord(tmp_path / "a") == []


def test_a_record_longer_than_the_buffer_is_read() -> None:
    large = bytes(range(256)) * 4096
    assert payloads(record(b"a") + record(large) + record(b"b")) == [b"a", large, b"b"]


@given(st.lists(st.binary(max_size=300), max_size=20), st.sampled_from([None, "gzip", "zlib"]))
@settings(max_examples=60, deadline=None)
def test_payloads_round_trip(records: list[bytes], compression: str | None) -> None:
    dataio.write_tfrecord("memory://tfrecord/roundtrip", records, compression=compression)
    assert payloads("memory://tfrecord/roundtrip", compression=compression) == records


# ------------------------------------------------------------------------- examples

VALUES = st.one_of(
    st.lists(st.binary(max_size=20), max_size=4), st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=4),
    st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=4),
)


@given(st.dictionaries(st.text(max_size=8), VALUES, max_size=5))
@settings(max_examples=60, deadline=None)
def test_examples_round_trip(example: dict[str, Any]) -> None:
    assert parse_example(encode_example(example)) == example


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        ("é", ["é".encode()]), (bytearray(b"a"), [b"a"]), (True, [1]), (1.5, [1.5]), ([1, 2.5], [1.0, 2.5]), (np.int32(4), [4]), ((1, 2), [1, 2]),
        (np.array([1, 2], np.uint8), [1, 2]), (np.array([0.5], np.float16), [0.5]), (np.array([], np.float32), []), (np.array([b"x"]), [b"x"]), ([np.float32(0.5)], [0.5]),
    ],
)
def test_values_of_every_kind_are_written(value: Any, stored: list[Any]) -> None:
    assert parse_example(encode_example({"a": value})) == {"a": stored}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([1, "a"], "mixes"), (np.zeros((2, 2)), r"\(2, 2\)"), (2**63, "'a'"), (1e300, "float32"), (None, "NoneType"), ({"b": 1}, "dict"),
        ([None], "NoneType"), (np.zeros(2, complex), "complex"),
    ],
)
def test_what_an_example_does_not_hold_is_refused_with_its_name(value: Any, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=f"feature 'a'.*{message}" if "'a'" not in message else "feature 'a'"):
        encode_example({"a": value})


def test_features_are_chosen() -> None:
    assert dataio.read_tfrecord(record(encode_example(EXAMPLE)), features=["label", "other"]) == [{"label": EXAMPLE["label"]}]


def test_unpacked_numbers_are_read() -> None:
    unpacked = b"\x0a\x0f\x0a\x0d\x0a\x01l\x12\x08\x1a\x06\x08\x01\x08\x02\x08\x03"
    assert parse_example(unpacked) == {"l": [1, 2, 3]}


def test_a_payload_that_is_no_example_is_named() -> None:
    with pytest.raises(ValueError, match=r"record 1 \(byte \d+\) is no tf.train.Example"):
        dataio.read_tfrecord(record(encode_example({"a": 1})) + record(b"\xff\xff"))


# ------------------------------------------------------------------------- damage


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 0x40]) + data[at + 1 :]


HUGE = struct.pack("<Q", 1 << 60)
DAMAGED = {
    "length": (flipped(STREAM, STARTS[2] + 1), "its length does not match", TFRecordError),
    "length_crc": (flipped(STREAM, STARTS[2] + 9), "its length does not match", TFRecordError),
    "payload": (flipped(STREAM, STARTS[2] + 13), "its content does not match", TFRecordError),
    "payload_crc": (flipped(STREAM, STARTS[3] - 1), "its content does not match", TFRecordError),
    "garbage_between": (STREAM[: STARTS[2]] + b"garbage" * 9 + STREAM[STARTS[2] :], "its length does not match", TFRecordError),
    "claims_2**60": (STREAM[: STARTS[2]] + HUGE + masked(HUGE) + STREAM[STARTS[2] :], "claims 1,152,921,504,606,846,976 bytes", TFRecordError),
    "cut_and_appended": (STREAM[: STARTS[2]] + record(bytes(99))[:50] + STREAM[STARTS[2] :], "its content does not match", TFRecordError),
    "cut_in_payload": (STREAM[: STARTS[2] + 20], "the file ends before", TFRecordError),
    "cut_in_footer": (STREAM[: STARTS[3] - 1], "the file ends before", TFRecordError),
    "cut_in_header": (STREAM[: STARTS[2] + 5], "ends inside its header", TFRecordCutError),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_damage_is_named_after_the_records_before_it(case: str) -> None:
    data, message, kind = DAMAGED[case]
    found = []
    with pytest.raises(kind, match=rf"<bytes>: record 2 \(byte {STARTS[2]}\) .*{message}") as caught:
        found.extend(payload for _, _, payload in iter_payloads(data))
    assert found == PAYLOADS[:2]
    assert (caught.value.record, caught.value.offset) == (2, STARTS[2])


@pytest.mark.parametrize("case", DAMAGED)
def test_skipping_keeps_every_whole_record(case: str, caplog: pytest.LogCaptureFixture) -> None:
    data = DAMAGED[case][0]
    whole = [one for one in PAYLOADS if record(one) in data]
    with caplog.at_level(logging.WARNING, "dataio.tfrecord"):
        assert payloads(data, on_corrupt="skip") == whole
    lost = len(data) - sum(16 + len(one) for one in whole)
    assert f"{lost} bytes were left out" in caplog.text


@given(st.integers(0, len(STREAM) - 1), st.binary(min_size=1, max_size=60))
@settings(max_examples=100, deadline=None)
def test_overwritten_bytes_cost_only_the_records_they_touch(at: int, garbage: bytes) -> None:
    data = STREAM[:at] + garbage + STREAM[at + len(garbage) :]
    end = at + len(garbage)
    untouched = [one for one, start in zip(PAYLOADS, STARTS) if start >= end or start + 16 + len(one) <= at]
    found = payloads(data, on_corrupt="skip", compression=None)
    assert [one for one in found if one in untouched] == untouched


@pytest.mark.parametrize("on_corrupt", ["raise", "skip"])
def test_a_claim_of_2_60_bytes_takes_no_memory(on_corrupt: str) -> None:
    import tracemalloc

    tracemalloc.start()
    try:
        data = HUGE + masked(HUGE)
        if on_corrupt == "raise":
            with pytest.raises(ValueError, match="max_record_bytes"):
                payloads(data)
        else:
            assert payloads(data, on_corrupt="skip") == []
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def test_a_claim_within_the_limit_takes_memory_only_for_what_is_there() -> None:
    import tracemalloc

    claim = struct.pack("<Q", 1 << 30)
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="the file ends before"):
            payloads(claim + masked(claim) + bytes(1 << 20))
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


def test_forged_headers_do_not_make_the_search_quadratic(monkeypatch: pytest.MonkeyPatch) -> None:
    from dataio.formats.tfrecord import framing

    forged = b"".join(struct.pack("<Q", n) + masked(struct.pack("<Q", n)) for n in [40_000] * 3_000) + bytes(40_016)
    monkeypatch.setattr(framing, "_TRIED", 1 << 20)
    checked = 0
    value = google_crc32c.value

    def counted(data: bytes) -> int:
        nonlocal checked
        checked += len(data)
        return int(value(data))

    monkeypatch.setattr(framing.google_crc32c, "value", counted)
    assert payloads(b"\xff" * 12 + forged, on_corrupt="skip") == []
    assert checked < (1 << 20) + 20 * len(forged)  # every header tried would be 120 MB


def test_every_byte_is_searched_once_however_many_places_are_damaged(monkeypatch: pytest.MonkeyPatch) -> None:
    from dataio.formats.tfrecord import framing

    searched = 0
    header_offsets = framing.header_offsets

    def counted(data: memoryview) -> list[int]:
        nonlocal searched
        searched += len(data)
        return header_offsets(data)

    monkeypatch.setattr(framing, "header_offsets", counted)
    data = (b"?" + record(b"x")) * 20_000
    assert payloads(data, on_corrupt="skip", compression=None) == [b"x"] * 20_000
    assert searched < 1.1 * len(data)


def test_damage_inside_a_compressed_stream_is_an_error_of_the_stream() -> None:
    with pytest.raises(OpError, match="cut off"):
        payloads(gzip.compress(STREAM)[:-9])


# ------------------------------------------------------------------------- arguments and files


def test_a_missing_file_is_told_at_the_first_example(tmp_path: Path) -> None:
    examples = dataio.iter_tfrecord(tmp_path / "none")
    with pytest.raises(FileNotFoundError, match="none"):
        next(examples)


@pytest.mark.parametrize("records", ["text", b"bytes", {"a": 1}, [1], ["a"], [None]])
def test_records_of_another_type_are_refused(records: Any, tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        dataio.write_tfrecord(tmp_path / "a", records)
    assert list(tmp_path.iterdir()) == []


def test_a_failing_iterable_leaves_the_old_file(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(STREAM)

    def records() -> Any:
        yield b"one"
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        dataio.write_tfrecord(tmp_path / "a", records())
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [STREAM]


@pytest.mark.parametrize(
    ("options", "kind"),
    [({"compression": "zip"}, ValueError), ({"on_corrupt": "warn"}, ValueError), ({"max_record_bytes": 0}, ValueError), ({"features": "label"}, TypeError)],
)
def test_options_are_checked(options: dict[str, Any], kind: type[Exception]) -> None:
    with pytest.raises(kind, match=next(iter(options))):
        dataio.read_tfrecord(STREAM, **options)


def test_a_record_that_cannot_be_encoded_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"record 1: feature 'a'"):
        dataio.write_tfrecord(tmp_path / "a", [{"a": 1}, {"a": 2**70}])
    assert list(tmp_path.iterdir()) == []


def test_leaving_early_closes_the_file(tmp_path: Path) -> None:
    import os

    (tmp_path / "a").write_bytes(STREAM)
    before = os.listdir("/proc/self/fd")
    examples = iter_payloads(tmp_path / "a")
    next(examples)
    examples.close()
    assert len(os.listdir("/proc/self/fd")) == len(before)
