"""`npz`: the arrays of an .npz file as records."""

from __future__ import annotations

import pickle
import zipfile

import numpy as np
import pytest

import dataio

from .conftest import npy

ARRAYS = {"b": np.arange(6.0), "a/x": np.zeros((2, 3), "i4"), "..": np.ones(4)}


@pytest.fixture(params=["local", "s3"])
def uri(request, tmp_path):
    """The file, in two places."""
    where = str(tmp_path) if request.param == "local" else request.getfixturevalue("s3_bucket")
    dataio.write_npz(f"{where}/x.npz", ARRAYS, compressed=request.param == "s3")
    return f"{where}/x.npz"


def test_records_are_in_the_order_of_the_file(uri):
    found = list(dataio.npz(uri).records())
    assert [record["key"] for record in found] == list(ARRAYS)
    assert [bytes(record["reader"].read_all()) for record in found] == [npy(array) for array in ARRAYS.values()]


def test_keys_pick_without_changing_the_order(uri):
    found = dataio.npz(uri).records(["..", "b"])
    assert [record["key"] for record in found] == ["b", ".."]
    assert len(found) == 2


def test_records_are_decoded_by_a_pipeline(uri):
    pipe = dataio.pipeline(
        dataio.map(lambda record: {**record, "x": record["reader"]}), dataio.slot("x").decode(dataio.decoders.npy()), dataio.batch(1)
    )
    with pipe.bind(dataio.npz(uri).records(["a/x"])).run("numpy") as loader:
        (batch,) = loader
    np.testing.assert_array_equal(batch["x"], ARRAYS["a/x"][None])


def test_records_shuffle_and_travel_in_pickles(uri):
    found = pickle.loads(pickle.dumps(dataio.npz(uri).records().shuffle(1)))
    assert sorted(record["key"] for record in found) == sorted(ARRAYS)


def test_attributes(tmp_path):
    found = dataio.npz(tmp_path / "x.npz", max_output_bytes=5)  # which need not be there yet
    assert (found.path, found.max_output_bytes) == (str(tmp_path / "x.npz"), 5)


def test_larger_arrays_than_allowed_fail_when_they_are_read(uri):
    records = list(dataio.npz(uri, max_output_bytes=160).records())
    assert len(records[1]["reader"].read_all()) == 152
    with pytest.raises(RuntimeError, match="176"):
        records[0]["reader"].read_all()


@pytest.mark.parametrize(
    ("keys", "error", "text"),
    [(["c"], KeyError, "no array 'c'"), ("b", TypeError, "list of names"), ([1], TypeError, "as str"), (["aa/x"], KeyError, "did you mean 'a/x'")],
)
def test_bad_keys(keys, error, text, tmp_path):
    dataio.write_npz(tmp_path / "x.npz", ARRAYS)
    with pytest.raises(error, match=text):
        dataio.npz(tmp_path / "x.npz").records(keys)


@pytest.mark.parametrize(("data", "text"), [(b"", "no zip"), (b"PK\x03\x04" + bytes(50), "no zip"), (npy(np.zeros(3)), "no zip")])
def test_what_is_no_npz(data, text, tmp_path):
    (tmp_path / "x.npz").write_bytes(data)
    with pytest.raises(ValueError, match=text):
        dataio.npz(tmp_path / "x.npz").records()


def test_missing_files_and_bad_arguments(tmp_path):
    with pytest.raises(FileNotFoundError):
        dataio.npz(tmp_path / "no.npz").records()
    with pytest.raises(TypeError):
        dataio.npz(b"x")
    with pytest.raises(ValueError, match="max_output_bytes"):
        dataio.npz("x.npz", max_output_bytes=0)


def test_an_array_stored_twice_is_told_when_it_is_read(tmp_path):
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("a.npy", npy(np.zeros(1)))
        with pytest.warns(UserWarning, match="Duplicate"):
            archive.writestr("a.npy", npy(np.zeros(1)))
    (record,) = dataio.npz(tmp_path / "x.npz").records()
    with pytest.raises(ValueError, match="twice"):
        record["reader"].read_all()
