"""`read_hdf5` and `open_hdf5`: what comes out equals what h5py wrote; selections; threads, forks; files that lie or lead elsewhere."""

from __future__ import annotations

import io
import multiprocessing
import pickle
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import dataio
from dataio.engine.errors import LimitError

X = np.arange(600 * 6, dtype="i4").reshape(600, 6)
WORDS = np.array([f"wörd {i}" for i in range(300)], object)


@pytest.fixture
def path(tmp_path):
    """A file with a data set of each storage."""
    name = str(tmp_path / "x.h5")
    with h5py.File(name, "w") as file:
        file["plain"] = X
        file.create_dataset("g/packed", data=X, chunks=(64, 4), compression="gzip", shuffle=True, fletcher32=True)
        file.create_dataset("words", data=WORDS, dtype=h5py.string_dtype())
    return name


@pytest.fixture(params=["local", "memory", "s3"])
def source(request, path):
    """The same file, in three places."""
    if request.param == "local":
        return path
    data = open(path, "rb").read()  # noqa: SIM115
    if request.param == "memory":
        return data
    uri = request.getfixturevalue("s3_bucket") + "/x.h5"
    dataio.write(uri, data)
    return uri


def made(tmp_path, values: Any, **options: Any) -> str:
    """A file with one data set, `x`."""
    with h5py.File(tmp_path / "made.h5", "w") as file:
        file.create_dataset("x", data=values, **options)
    return str(tmp_path / "made.h5")


# ------------------------------------------------------------------- what comes out


def test_every_source_gives_the_same(source):
    with dataio.open_hdf5(source) as session:
        assert session.keys() == list(session) == ["/plain", "/words", "/g/packed"]
        for key in ("plain", "/plain", "g/packed"):
            np.testing.assert_array_equal(session.read(key=key), X)
        np.testing.assert_array_equal(session.read(key="words"), WORDS)
    np.testing.assert_array_equal(dataio.read_hdf5(source, key="g/packed", selection=(slice(5, 90), 2)), X[5:90, 2])


TYPES = [
    *("i1", "u8", "f2", "f4", ">f8", ">u2", "?", "c8", ">c16", "S3", "V4"),
    [("a", ">i4"), ("b", "f8"), ("c", "i2", (3,))],
]


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("options", [{}, {"chunks": (4,), "compression": "gzip"}, {"chunks": (4,), "compression": "lzf"}], ids=str)
def test_element_types(dtype, options, tmp_path):
    values = np.zeros(10, dtype)
    values.view(np.uint8)[:] = np.arange(values.nbytes) % 2
    found = dataio.read_hdf5(made(tmp_path, values, **options), key="x")
    np.testing.assert_array_equal(found, values)
    assert found.dtype == np.dtype(dtype).newbyteorder("=")
    assert found.flags.writeable


@pytest.mark.parametrize("values", [3.5, True, "text", 2 + 1j], ids=str)
def test_scalars_have_no_axes(values, tmp_path):
    found = dataio.read_hdf5(made(tmp_path, values), key="x")
    assert found.shape == ()
    assert found.item() == values


@pytest.mark.parametrize("options", [{"shape": (0, 3)}, {"shape": (4, 3)}, {"shape": (4, 3), "chunks": (2, 3), "fillvalue": 7}], ids=str)
def test_data_sets_that_were_never_written(options, tmp_path):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("x", dtype="f4", **options)
        file["nothing"] = h5py.Empty("f8")
    expected = np.full(options["shape"], options.get("fillvalue", 0), "f4")
    np.testing.assert_array_equal(dataio.read_hdf5(tmp_path / "x.h5", key="x"), expected)
    assert dataio.read_hdf5(tmp_path / "x.h5", key="nothing").shape == (0,)


def test_rows_of_their_own_length(tmp_path):
    rows = np.empty(3, object)
    rows[:] = [np.arange(n, dtype="i4") for n in (2, 0, 5)]
    found = dataio.read_hdf5(made(tmp_path, rows, dtype=h5py.vlen_dtype("i4")), key="x")
    assert [row.tolist() for row in found] == [row.tolist() for row in rows]


def test_text_that_is_no_utf8_keeps_its_bytes(tmp_path):
    found = dataio.read_hdf5(made(tmp_path, [b"a\xff"], dtype=h5py.string_dtype()), key="x")
    assert found[0].encode("utf-8", "surrogateescape") == b"a\xff"


def test_torch_gets_tensors_in_the_byte_order_of_the_machine(tmp_path):
    found = dataio.read_hdf5(made(tmp_path, X.astype(">i4")), key="x", selection=slice(None, None, -1), framework="torch")
    assert torch.equal(found, torch.from_numpy(X[::-1].copy()))
    with pytest.raises(ValueError, match="torch has no dtype"):
        dataio.read_hdf5(made(tmp_path, WORDS, dtype=h5py.string_dtype()), key="x", framework="torch")


def test_metadata_has_python_values(tmp_path):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        found = file.create_dataset("x", data=np.zeros((2, 3), ">f4"))
        found.attrs.update({"n": 5, "f": 0.5, "s": "text", "a": np.arange(3), "t": ["a", "b"], "b": True, "e": h5py.Empty("f4"), "r": file["x"].ref})
    with dataio.open_hdf5(tmp_path / "x.h5") as session:
        facts = session.metadata(key="x")
    assert (facts["shape"], facts["dtype"]) == ((2, 3), "float32")
    plain = {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in facts["attrs"].items()}
    assert plain == {"n": 5, "f": 0.5, "s": "text", "a": [0, 1, 2], "t": ["a", "b"], "b": True, "e": None, "r": "/x"}
    assert type(plain["n"]) is int


# ------------------------------------------------------------------- selections

INDEX = st.one_of(
    st.integers(-6, 5),
    st.builds(slice, *[st.one_of(st.none(), st.integers(-8, 8))] * 2, st.sampled_from([None, 1, 2, 3, -1, -2])),
    st.lists(st.integers(-6, 5), max_size=8),
    st.lists(st.booleans(), min_size=6, max_size=6).map(lambda mask: np.array(mask, bool)),
)
SMALL = np.arange(6**3).reshape(6, 6, 6)


def outer(array: np.ndarray, selection: tuple[Any, ...]) -> np.ndarray:
    """Each index on its own axis, from the last to the first, so that those before keep their numbers."""
    for axis in reversed(range(len(selection))):
        index = selection[axis]
        index = np.array(index, int) if isinstance(index, list) else index
        array = array[(slice(None),) * axis + (index,)]
    return array


@pytest.fixture(scope="module")
def cubes(tmp_path_factory):
    """A session on one cube in three forms: contiguous, chunked, as texts."""
    name = tmp_path_factory.mktemp("cubes") / "x.h5"
    with h5py.File(name, "w") as file:
        file["plain"] = SMALL
        file.create_dataset("packed", data=SMALL, chunks=(4, 1, 3), compression="gzip")
        file.create_dataset("words", data=SMALL.astype(str).astype(object), dtype=h5py.string_dtype())
    with dataio.open_hdf5(name) as session:
        yield session


@settings(deadline=None, max_examples=150)
@given(selection=st.lists(INDEX, max_size=3).map(tuple), copy=st.booleans())
def test_selections_are_numpys_axis_by_axis(selection, copy, cubes):
    if sum(isinstance(index, (list, np.ndarray)) for index in selection) > 1:
        with pytest.raises(ValueError, match="one list"):
            cubes.read(key="plain", selection=selection)
        return
    expected = outer(SMALL, selection)
    for key in ("plain", "packed"):
        np.testing.assert_array_equal(cubes.read(key=key, selection=selection, copy=copy), expected)
    np.testing.assert_array_equal(cubes.read(key="words", selection=selection), expected.astype(str).astype(object))


def test_a_mask_over_everything_gives_one_axis(cubes):
    for key in ("plain", "packed"):
        np.testing.assert_array_equal(cubes.read(key=key, selection=SMALL % 5 == 0), SMALL[SMALL % 5 == 0])


@pytest.mark.parametrize(
    ("selection", "error", "text"),
    [
        (6, IndexError, "out of range for axis 0 of length 6"),
        (-7, IndexError, "out of range"),
        ([0, 6], IndexError, "out of range"),
        ((0, 0, 0, 0), IndexError, "4 indices"),
        ((..., ...), ValueError, "one ..."),
        ("a", ValueError, "got str"),
        (True, ValueError, "bools"),
        (1.5, ValueError, "got float"),
        ([[1, 2]], ValueError, "1-D"),
        ([0.5], ValueError, "1-D and of ints"),
        (np.zeros(5, bool), ValueError, "5 bools"),
        (np.zeros((6, 6), bool), ValueError, "shape"),
        (slice(None, None, 0), ValueError, "slice"),
    ],
    ids=str,
)
def test_bad_selections(selection, error, text, cubes):
    with pytest.raises(error, match=text):
        cubes.read(key="plain", selection=selection)


class Counted:
    """A source that counts the bytes that are read of it."""

    def __init__(self, data: bytes) -> None:
        self.data, self.size, self.identity, self.fetched = data, len(data), None, 0

    def open_ranges(self) -> Counted:
        return self

    def read(self, offset: int, length: int) -> bytes:
        self.fetched += length
        return self.data[offset : offset + length]

    def read_into(self, offset: int, out: memoryview) -> None:
        out[:] = self.read(offset, len(out))

    def close(self) -> None: ...


@pytest.mark.parametrize("selection", [slice(100, 110), [29_000, 3], (slice(None, 5), 7)], ids=str)
def test_a_selection_of_a_large_object_fetches_a_part(selection, tmp_path):
    rows = np.arange(3_000_000, dtype="i4").reshape(-1, 100)
    with open(made(tmp_path, rows), "rb") as file:
        source = Counted(file.read())
    np.testing.assert_array_equal(dataio.read_hdf5(source, key="x", selection=selection), rows[selection])
    assert source.fetched < rows.nbytes / 8


# ------------------------------------------------------------------- views


@pytest.mark.parametrize("place", ["local", "memory"])
def test_without_a_copy_a_plain_data_set_is_a_view(place, tmp_path):
    with h5py.File(tmp_path / "x.h5", "w", userblock_size=512) as file:
        file["x"] = X
        file["big"] = X.astype(">i4")
    source = tmp_path / "x.h5" if place == "local" else (tmp_path / "x.h5").read_bytes()
    with dataio.open_hdf5(source) as session:
        view = session.read(key="x", copy=False)
        assert not view.flags.writeable
        assert not view.flags.owndata
        assert session.read(key="big", copy=False).flags.writeable  # which had to be turned round
        np.testing.assert_array_equal(session.read(key="big", copy=False), X)
    np.testing.assert_array_equal(view, X)  # and stays when the session is closed


# ------------------------------------------------------------------- sessions


def test_threads_share_a_session(path):
    def read(i: int) -> bool:
        key = ("plain", "g/packed", "words")[i % 3]
        expected = WORDS if key == "words" else X
        return np.array_equal(session.read(key=key, selection=slice(i, None)), expected[i:])

    with dataio.open_hdf5(path) as session, ThreadPoolExecutor(8) as pool:
        assert all(pool.map(read, range(48)))


def in_child(session: dataio.Hdf5Session, answers: Any) -> None:
    answers.put([np.array_equal(session.read(key=key), X) for key in ("plain", "g/packed")])


@pytest.mark.parametrize(("method", "place"), [("fork", "local"), ("fork", "memory"), ("spawn", "local")])
def test_other_processes_open_the_file_anew(method, place, path):
    source = path if place == "local" else open(path, "rb").read()  # noqa: SIM115
    context = multiprocessing.get_context(method)
    with dataio.open_hdf5(source) as session:
        session.read(key="g/packed")
        answers = context.SimpleQueue()
        process = context.Process(target=in_child, args=(session, answers))
        process.start()
        process.join(30)
        assert process.exitcode == 0
        assert answers.get() == [True, True]
        np.testing.assert_array_equal(session.read(key="g/packed"), X)


def test_pickles_carry_where_the_file_is(source):
    with dataio.open_hdf5(source, max_output_bytes=1 << 20) as session, pickle.loads(pickle.dumps(session)) as again:
        assert (again.uri, again.max_output_bytes) == (session.uri, 1 << 20)
        np.testing.assert_array_equal(again.read(key="plain"), X)


def test_a_closed_session_says_so(path):
    session = dataio.open_hdf5(path)
    kept = session.read(key="plain")
    session.close()
    session.close()
    for use in (session.keys, lambda: session.read(key="plain"), lambda: "/plain" in session, lambda: session.metadata(key="plain")):
        with pytest.raises(ValueError, match="closed"):
            use()
    np.testing.assert_array_equal(kept, X)
    assert "closed" in repr(session)


def test_only_absolute_names_are_in_a_session(path):
    with dataio.open_hdf5(path) as session:
        assert [key in session for key in ("/plain", "/g/packed", "plain", "/g", "/no", "/plain/", 5)] == [True, True, *[False] * 5]


# ------------------------------------------------------------------- bad input


def test_a_missing_key_is_told_with_a_suggestion(path):
    with dataio.open_hdf5(path) as session:
        for key in ("/g/pack", "g", "/plain/x"):
            with pytest.raises(KeyError, match=r"x\.h5 holds no data set"):
                session.read(key=key)
        with pytest.raises(KeyError, match="did you mean '/g/packed'"):
            session.metadata(key="g/paked")
        with pytest.raises(TypeError, match="key"):
            session.read(key=b"plain")


@pytest.mark.parametrize("data", [b"", b"hello" * 200, b"\x89HDF\r\n\x1a\n", b"\x89HDF\r\n\x1a\n" + bytes(range(256)) * 4], ids=len)
def test_what_is_no_hdf5(data, tmp_path):
    (tmp_path / "bad.h5").write_bytes(data)
    for source in (tmp_path / "bad.h5", data):
        with pytest.raises(ValueError, match="no HDF5 file"):
            dataio.open_hdf5(source)


def test_missing_files_and_other_sources(tmp_path):
    with pytest.raises(FileNotFoundError):
        dataio.open_hdf5(tmp_path / "no.h5")
    with pytest.raises(IsADirectoryError):
        dataio.open_hdf5(tmp_path)
    with pytest.raises(TypeError):
        dataio.open_hdf5(5)
    with pytest.raises(ValueError, match="framework"):
        dataio.read_hdf5(tmp_path / "no.h5", key="x", framework="jax")


def test_a_file_that_was_cut_short(path):
    data = open(path, "rb").read()  # noqa: SIM115
    for size in (len(data) // 2, len(data) - 100):
        with pytest.raises(ValueError, match="damaged"):
            dataio.read_hdf5(data[:size], key="plain")


def test_damaged_chunks_are_told_and_spoil_no_other(tmp_path):
    data = bytearray(open(made(tmp_path, X, chunks=(100, 6), compression="gzip", fletcher32=True), "rb").read())  # noqa: SIM115
    with h5py.File(io.BytesIO(data)) as file:
        place = file["x"].id.get_chunk_info(3).byte_offset
    data[place + 20] ^= 0xFF
    with dataio.open_hdf5(bytes(data)) as session:
        np.testing.assert_array_equal(session.read(key="x", selection=slice(0, 300)), X[:300])
        with pytest.raises(ValueError, match="'/x' cannot be read"):
            session.read(key="x")


def test_a_shape_that_claims_too_much_allocates_nothing(tmp_path):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("x", shape=(1 << 50,), dtype="f8", chunks=(1024,))
        file.create_dataset("chunk", shape=(1 << 30,), dtype="f4", chunks=(1 << 29,), compression="gzip")
    with dataio.open_hdf5(tmp_path / "x.h5", max_output_bytes=1 << 20) as session:
        with pytest.raises(LimitError, match=r"'/x'.*max_output_bytes is 1,048,576"):
            session.read(key="x")
        with pytest.raises(LimitError, match="chunks of 2,147,483,648 bytes"):
            session.read(key="chunk", selection=0)
        assert session.read(key="x", selection=slice(1 << 49, (1 << 49) + 3)).tolist() == [0, 0, 0]


def test_texts_are_held_to_the_limit_while_they_are_read(tmp_path):
    path = made(tmp_path, ["x" * 10_000] * 500, dtype=h5py.string_dtype())
    with dataio.open_hdf5(path, max_output_bytes=1 << 20) as session:
        assert session.read(key="x", selection=slice(0, 90)).shape == (90,)
        with pytest.raises(LimitError, match="more than the 1,048,576 bytes"):
            session.read(key="x")


def test_an_unknown_filter_is_named(tmp_path):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        plist.set_chunk((10,))
        plist.set_filter(31999, h5py.h5z.FLAG_OPTIONAL, (1,))
        space = h5py.h5s.create_simple((10,))
        h5py.h5d.create(file.id, b"x", h5py.h5t.NATIVE_INT32, space, dcpl=plist)
    with pytest.raises(ValueError, match=r"'/x' is stored through the filter 31999 .*not installed"):
        dataio.read_hdf5(tmp_path / "x.h5", key="x")


def test_filters_of_hdf5plugin_are_found(tmp_path):
    hdf5plugin = pytest.importorskip("hdf5plugin")
    path = made(tmp_path, X, chunks=(64, 6), **hdf5plugin.Zstd())
    np.testing.assert_array_equal(dataio.read_hdf5(path, key="x"), X)


def test_references_are_refused(tmp_path):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["x"] = X
        file["refs"] = np.array([file["x"].ref], h5py.ref_dtype)
    with pytest.raises(ValueError, match="references"):
        dataio.read_hdf5(tmp_path / "x.h5", key="refs")


# ------------------------------------------------------------------- links


@pytest.fixture
def linked(tmp_path):
    """A file with all kinds of links."""
    (tmp_path / "secret").write_bytes(b"secret!!")
    with h5py.File(tmp_path / "other.h5", "w") as other:
        other["x"] = X
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["a/x"] = X
        file["a/again"] = file["a"]
        file["b"] = file["a"]
        file["soft"] = h5py.SoftLink("/a/x")
        file["a/near"] = h5py.SoftLink("x")
        file["group"] = h5py.SoftLink("/a")
        file["nowhere"] = h5py.SoftLink("/no")
        file["circle"] = h5py.SoftLink("/circle")
        file["elsewhere"] = h5py.ExternalLink(str(tmp_path / "other.h5"), "/x")
        file["through"] = h5py.SoftLink("/elsewhere")
        file.create_dataset("stored", shape=(8,), dtype="u1", external=[(str(tmp_path / "secret"), 0, 8)])
        for name, target, key in (("virtual", "x.h5", "a/x"), ("foreign", "other.h5", "x"), ("sly", "x.h5", "elsewhere")):
            layout = h5py.VirtualLayout(X.shape, "i4")
            layout[:] = h5py.VirtualSource(str(tmp_path / target), key, X.shape)
            file.create_virtual_dataset(name, layout)
    with dataio.open_hdf5(tmp_path / "x.h5") as session:
        yield session


def test_links_inside_the_file_are_followed_and_circles_end(linked):
    assert linked.keys() == ["/foreign", "/sly", "/soft", "/stored", "/virtual", "/a/near", "/a/x"]
    for key in ("a/x", "b/x", "soft", "a/near", "group/x", "a/again/again/x", "virtual"):
        np.testing.assert_array_equal(linked.read(key=key), X)


@pytest.mark.parametrize("key", ["elsewhere", "through", "stored", "foreign", "sly"])
@pytest.mark.parametrize("copy", [True, False])
def test_no_way_leads_into_another_file(key, copy, linked):
    with pytest.raises(ValueError, match=r"another file|other files"):
        linked.read(key=key, copy=copy)
    assert ("/" + key in linked) == (key in ("stored", "foreign", "sly"))


def test_dangling_and_circular_links_are_told(linked):
    with pytest.raises(KeyError, match="'/nowhere'"):
        linked.read(key="nowhere")
    with pytest.raises(ValueError, match="circle"):
        linked.read(key="circle")


def test_groups_are_not_followed_for_ever(tmp_path):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        here = file
        for _ in range(600):
            here = here.create_group("g")
        here["x"] = 1
    with dataio.open_hdf5(tmp_path / "x.h5") as session, pytest.raises(LimitError, match="nested"):
        session.keys()


def test_failures_of_a_store_stay_what_they_are(tmp_path):
    class Failing(Counted):
        hung_up = False

        def read(self, offset: int, length: int) -> bytes:
            if self.hung_up:
                raise ConnectionResetError("the store hung up")
            return super().read(offset, length)

    with open(made(tmp_path, np.zeros(1 << 20, "u1")), "rb") as file:
        source = Failing(file.read())
    with dataio.open_hdf5(source) as session:
        session.keys()
        source.hung_up = True
        with pytest.raises(ConnectionResetError, match="hung up"):
            session.read(key="x")
        source.hung_up = False
        assert not session.read(key="x").any()


def test_a_heap_that_would_hang_the_library_is_refused(tmp_path):
    with open(made(tmp_path, ["a", "b"], dtype=h5py.string_dtype()), "rb") as file:
        data = bytearray(file.read())
    heap = data.index(b"GCOL")
    first = heap + 16
    data[first : first + 2] = bytes(2)  # free space
    data[first + 8 : first + 16] = bytes(8)  # of no bytes
    with pytest.raises(ValueError, match="global heap"):
        dataio.read_hdf5(bytes(data), key="x")
