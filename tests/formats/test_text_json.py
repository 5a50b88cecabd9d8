"""The text and json decoders: every option, what passes unchanged, and what is refused."""

from __future__ import annotations

import codecs
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataio.engine.errors import OpError

from .helpers import decoder, run

BOM = codecs.BOM_UTF8


def text(data, **options):
    return run(decoder("text", **options), data)


def parse(data, **options):
    return run(decoder("json", **options), data)


@settings(max_examples=50, deadline=None)
@given(st.text())
def test_text_passes_unchanged(value):
    data = value.encode()
    assert text(data, strip_bom=False).tobytes() == data
    assert text(data, strip_bom=False, as_object=True) == value


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=40))
def test_text_is_what_python_decodes(data):
    try:
        expected = data.decode("utf-8")
    except UnicodeDecodeError:
        with pytest.raises(OpError, match="not valid UTF-8 at byte"):
            text(data, strip_bom=False)
    else:
        assert text(data, strip_bom=False, as_object=True) == expected
    assert text(data, encoding="utf-8-lossy", strip_bom=False).tobytes() == data.decode("utf-8", "replace").encode()


@pytest.mark.parametrize("data", [b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xc0\x80", b"a\xe2\x82"],
                         ids=["surrogate", "beyond-unicode", "overlong", "cut-short"])  # fmt: skip
def test_what_is_no_utf8(data):
    with pytest.raises(OpError, match="encoding='utf-8-lossy' would replace it"):
        text(data)
    assert "\ufffd" in text(data, encoding="utf-8-lossy", as_object=True)


@pytest.mark.parametrize("op", [text, parse])
def test_one_byte_order_mark_is_dropped_on_request(op):
    data = BOM + b"[1]"
    assert op(data).tobytes() == b"[1]"
    if op is text:
        assert text(data, strip_bom=False).tobytes() == data
        assert text(BOM + data).tobytes() == data
    else:
        with pytest.raises(OpError, match="not valid JSON"):
            parse(data, strip_bom=False)


@pytest.mark.parametrize("op", ["text", "json"])
@pytest.mark.parametrize("name", ["UTF-8", "Utf8", "latin-1", "ascii", "utf-16", ""])
def test_other_encodings_fail_at_construction(op, name):
    with pytest.raises(ValueError, match="encoding"):
        decoder(op, encoding=name)


@pytest.mark.parametrize("op", ["text", "json"])
@pytest.mark.parametrize("arguments", [{"encoding": None}, {"strip_bom": 1}, {"as_object": "yes"}, {"as_object": None}])
def test_options_of_another_kind_fail_at_construction(op, arguments):
    with pytest.raises(TypeError, match=next(iter(arguments))):
        decoder(op, **arguments)


@pytest.mark.parametrize("field", [1, b"t", ["t"]])
def test_a_field_is_a_name(field):
    with pytest.raises(TypeError, match="field"):
        decoder("json", field=field)


@pytest.mark.parametrize("name", ["utf-8", "utf8"])
def test_names_of_utf8(name):
    assert text("é".encode(), encoding=name).tolist() == [0xC3, 0xA9]


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
SPACE = st.text(" \t\r\n", max_size=3)


@settings(max_examples=50, deadline=None)
@given(VALUES, SPACE, SPACE, st.booleans(), st.sampled_from([None, 1]))
def test_any_document_passes_unchanged_with_its_white_space(value, before, after, ascii_only, indent):
    data = (before + json.dumps(value, ensure_ascii=ascii_only, indent=indent) + after).encode("utf-8", "surrogatepass")
    assert parse(data).tobytes() == data
    assert parse(data, as_object=True) == value


@settings(max_examples=50, deadline=None)
@given(st.text(), st.text())
def test_a_field_gives_its_text(value, name):
    data = json.dumps({"other": 1, name: value}).encode()
    assert parse(data, field=name).tobytes() == value.encode()
    assert parse(data, field=name, as_object=True) == value


@pytest.mark.parametrize("value", [None, True, 3, 0.5, [1], {"a": 1}])
def test_a_field_of_any_kind_as_an_object(value):
    data = json.dumps({"t": value}).encode()
    assert parse(data, field="t", as_object=True) == value
    with pytest.raises(OpError, match=f"wants a string, found {type(value).__name__}"):
        parse(data, field="t")


@pytest.mark.parametrize("options", [{}, {"as_object": True}])
@pytest.mark.parametrize("data", [b'{"u": "x"}', b"{}", b"[]", b'"t"', b"null"])
def test_a_missing_field(data, options):
    with pytest.raises(OpError, match="finds no such member"):
        parse(data, field="t", **options)


def test_names_with_dots_are_names():
    assert parse(b'{"a.b": "x", "a": {"b": "y"}}', field="a.b").tobytes() == b"x"


def test_the_last_of_equal_names_counts():
    data = b'{"t": "first", "t": "last"}'
    assert parse(data).tobytes() == data
    assert parse(data, field="t").tobytes() == b"last"


NO_JSON = [
    pytest.param(b"", "no data", id="empty"),
    pytest.param(b" \n", "white space", id="blank"),
    pytest.param(b"{} {}", "Extra data", id="two"),
    pytest.param(b"{}\n{}\n", "Extra data", id="lines"),
    pytest.param(b"{} // c", "Extra data", id="comment"),
    pytest.param(b"{}\0", "Extra data", id="zero"),
    pytest.param(b"NaN", "NaN is not JSON", id="nan"),
    pytest.param(b"[Infinity]", "Infinity is not JSON", id="infinity"),
    pytest.param(b'{"a": -Infinity}', "-Infinity is not JSON", id="minus-infinity"),
    pytest.param(b"'a'", "not valid", id="quotes"),
    pytest.param(b"[1,]", "not valid", id="comma"),
    pytest.param(b"01", "not valid", id="zero-first"),
    pytest.param(b"+1", "not valid", id="plus"),
    pytest.param(b".5", "not valid", id="point"),
    pytest.param(b'"\x01"', "control character", id="control"),
    pytest.param(b'"\\x"', "not valid", id="escape"),
    pytest.param(b'"\xff"', "UTF-8 at byte 1", id="utf-8"),
    pytest.param("{}".encode("utf-16"), "UTF-8 at byte 0", id="utf-16"),
    pytest.param(b"[" * 100_000, "nested too deep", id="deep-open"),
    pytest.param(b"[" * 100_000 + b"]" * 100_000, "nested too deep", id="deep"),
    pytest.param(b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "nested too deep", id="deep-objects"),
    pytest.param(b"1" * 5000, "4300 digits", id="long-number"),
]


@pytest.mark.parametrize("options", [{}, {"as_object": True}, {"field": "t"}])
@pytest.mark.parametrize(("data", "match"), NO_JSON)
def test_what_is_no_single_json_document(data, match, options):
    with pytest.raises(OpError, match=match):
        parse(data, **options)


def test_lossy_json_replaces_before_it_parses():
    assert parse(b'{"t": "a\xff"}', encoding="utf-8-lossy", field="t").tobytes() == "a\ufffd".encode()
    assert parse(b'["\xff"]', encoding="utf-8-lossy").tobytes() == '["\ufffd"]'.encode()


@pytest.mark.parametrize("op", [text, parse])
def test_a_file_read_for_this_record_is_handed_on_without_a_copy(op):
    data = np.frombuffer(bytearray(b"[1, 2]"), np.uint8).copy()
    assert np.shares_memory(op(data), data)


@pytest.mark.parametrize("op", [text, parse])
@pytest.mark.parametrize("data", [b"[1]", memoryview(b"x[1]")[1:], np.frombuffer(b"x[1]", np.uint8)[1:]],
                         ids=["bytes", "memoryview", "array"])  # fmt: skip
def test_the_result_is_writable_and_never_somebody_elses_memory(op, data):
    found = op(data)
    found[:] = 0
    assert bytes(data) == b"[1]"
