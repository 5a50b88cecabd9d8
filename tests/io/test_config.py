"""Credentials, endpoints and transport: what is taken, what is refused, and how a change reaches stores and processes."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import safetensors.numpy

import dataio
from dataio.io.config import apply_config, credentials_for, endpoint_for, export_config, transport_for
from dataio.io.errors import AccessDeniedError
from dataio.io.settings import IO_SETTINGS, ProviderSetting
from dataio.io.store import open_store

from ..servers.s3 import SECRET_ACCESS_KEY, S3Server

KEYS = {"access_key_id": "AKIAIOSFODNN7EXAMPLE", "secret_access_key": "wJalrXUtnFEMI/K7MDENG"}


@pytest.fixture(autouse=True)
def unconfigured() -> Iterator[None]:
    before = export_config()
    yield
    apply_config(before)


# ------------------------------------------------------------------------------------------------------ credentials

METHODS = [
    pytest.param("s3", "default", {}, id="default"),
    pytest.param("r2", "env", {}, id="env"),
    pytest.param("s3", "explicit", {**KEYS, "session_token": "a-session"}, id="explicit"),
    pytest.param("s3", "profile", {"profile": "work"}, id="profile"),
    pytest.param("gs", "anonymous", {}, id="anonymous"),
    pytest.param("hf", "hf_token", {"token": "hf_abcdefgh"}, id="hf_token"),
    pytest.param("gs", "gcs_credential_json", {"credential_json": "{}"}, id="gcs-json"),
    pytest.param("gs", "gcs_credential_path", {"credential_path": "/keys/me.json"}, id="gcs-path"),
    pytest.param("az", "azure_key", {"account_name": "me", "account_key": "a2V5a2V5"}, id="azure-key"),
    pytest.param("az", "azure_sas", {"account_name": "me", "sas_token": "sv=1&sig=abcdef"}, id="azure-sas"),
]


@pytest.mark.parametrize(("scheme", "method", "values"), METHODS)
def test_each_method_keeps_what_it_needs(scheme: str, method: str, values: dict[str, str]) -> None:
    dataio.configure_credentials(scheme, method=method, **values)
    found = credentials_for(scheme, "any")
    assert (found.scheme, found.method, dict(found.values)) == (scheme, method, values)


@pytest.mark.parametrize(("scheme", "method", "values"), [case for case in METHODS if case.values[2]])
def test_a_missing_value_is_named(scheme: str, method: str, values: dict[str, str]) -> None:
    for name in values:
        if name != "session_token":
            with pytest.raises(ValueError, match=name):
                dataio.configure_credentials(scheme, method=method, **{k: v for k, v in values.items() if k != name})


def test_both_keys_alone_mean_explicit() -> None:
    dataio.configure_credentials("S3", **KEYS)
    assert credentials_for("s3", "b").method == "explicit"


@pytest.mark.parametrize(
    ("scheme", "options", "message"),
    [
        ("s3", {}, "needs method="),
        ("s3", {"access_key_id": "x"}, "needs method="),
        ("s3", {"method": "explicite", **KEYS}, "did you mean 'explicit'"),
        ("ftp", {"method": "default"}, "unknown scheme 'ftp'"),
        ("s3", {"method": "env_prefix", "prefix": "NOT_SET_ANYWHERE_"}, "NOT_SET_ANYWHERE_ACCESS_KEY_ID or AWS_ACCESS_KEY_ID"),
    ],
)
def test_what_cannot_be_used_is_refused(monkeypatch: pytest.MonkeyPatch, scheme: str, options: Any, message: str) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    with pytest.raises(ValueError, match=message):
        dataio.configure_credentials(scheme, **options)


def test_a_bucket_goes_before_its_scheme_and_the_scheme_before_the_default() -> None:
    assert credentials_for("s3", "mine").method == "env"
    dataio.configure_credentials("s3", method="anonymous")
    dataio.configure_credentials("s3", bucket="mine", **KEYS)
    assert [credentials_for("s3", bucket).method for bucket in ("mine", "other")] == ["explicit", "anonymous"]


def test_a_repository_is_configured_whatever_its_revision() -> None:
    dataio.configure_credentials("hf", bucket="org/repo", method="hf_token", token="hf_abcdefgh")
    assert credentials_for("hf", "org/repo@v1").method == "hf_token"


def test_clearing_a_scheme_leaves_the_others() -> None:
    for scheme in ("s3", "gs"):
        dataio.configure_credentials(scheme, method="anonymous")
        dataio.configure_endpoint(scheme, "http://127.0.0.1:1")
    dataio.clear_credentials("s3")
    assert (credentials_for("s3", "b").method, endpoint_for("s3")) == ("env", os.environ.get("AWS_ENDPOINT_URL"))
    assert (credentials_for("gs", "b").method, endpoint_for("gs")) == ("anonymous", "http://127.0.0.1:1")


# ---------------------------------------------------------------------------------------- endpoints and transport


@pytest.mark.parametrize("url", ["store.example.com", "ftp://a", "http://", "http://a?x=1", "http://[::1", "http://a:b", "", None, 3])
def test_an_endpoint_is_an_http_url(url: Any) -> None:
    with pytest.raises(ValueError, match="an endpoint is a URL"):
        dataio.configure_endpoint("s3", url)


@pytest.mark.parametrize(
    ("scheme", "variables", "endpoint"),
    [
        ("s3", {"AWS_ENDPOINT_URL": "http://b/"}, "http://b"),
        ("s3", {"AWS_ENDPOINT_URL_S3": "http://a", "AWS_ENDPOINT_URL": "http://b"}, "http://a"),
        ("r2", {"R2_ENDPOINT_URL": "https://acc.example"}, "https://acc.example"),
        ("gs", {"STORAGE_EMULATOR_HOST": "localhost:4443"}, "http://localhost:4443"),
        ("hfd", {"HF_ENDPOINT": "https://hub.example"}, "https://hub.example"),
    ],
)
def test_the_environment_names_endpoints(monkeypatch: pytest.MonkeyPatch, scheme: str, variables: Any, endpoint: str) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert endpoint_for(scheme) == endpoint
    dataio.configure_endpoint(scheme, "http://configured/")
    assert endpoint_for(scheme) == "http://configured"


@pytest.mark.parametrize(
    "options",
    [
        {"timeout_secs": 0},
        {"timeout_secs": float("nan")},
        {"connect_timeout_secs": -1},
        {"retry_deadline_secs": float("inf")},
        {"max_attempts": 0},
        {"max_attempts": True},
        {"pool_max_idle": -1},
        {"http_version": "h3"},
        {"proxy": "proxy.example:3128"},
    ],
    ids=str,
)
def test_transport_out_of_range_is_refused_and_changes_nothing(options: dict[str, Any]) -> None:
    before = transport_for("s3")
    with pytest.raises(ValueError, match=next(iter(options))):
        dataio.configure_transport("s3", **options)
    assert transport_for("s3") == before


def test_certificates_that_are_not_there_are_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        dataio.configure_transport("s3", ca_certificates=str(tmp_path / "none.pem"))


def test_transport_of_a_scheme_goes_before_default_and_default_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATAIO_OBJECT_REQUEST_TIMEOUT_SECS", "7.5")
    monkeypatch.setenv("DATAIO_OBJECT_MAX_ATTEMPTS", "9")
    dataio.configure_transport("default", max_attempts=2, pool_max_idle=3)
    dataio.configure_transport("s3", pool_max_idle=0, http_version="H2")
    s3, gs = transport_for("s3"), transport_for("gs")
    assert (s3.timeout, s3.attempts, s3.pool_max_idle, s3.http_version) == (7.5, 2, 0, "h2")
    assert (gs.timeout, gs.attempts, gs.pool_max_idle) == (7.5, 2, 3)
    dataio.clear_transport_overrides()
    assert transport_for("s3").attempts == 9


def test_plain_http_is_configured_as_https() -> None:
    dataio.configure_transport("https", timeout_secs=3)
    assert transport_for("http").timeout == transport_for("https").timeout == 3.0


def test_current_config_is_json_without_secrets() -> None:
    dataio.configure_credentials("s3", bucket="mine", **KEYS)
    dataio.configure_transport("s3", proxy="http://me:hunter2hunter2@proxy.example:3128")
    config = dataio.current_config()
    shown = json.dumps(config)
    assert config["credentials"]["s3 mine"] == {"method": "explicit", "access_key_id": "***", "secret_access_key": "***"}
    assert config["transport"]["s3"]["proxy"] == "http://***@proxy.example:3128"
    assert not any(secret in shown for secret in (*KEYS.values(), "hunter2"))


# ----------------------------------------------------------------------------------------- stores, threads, processes


def test_a_change_reaches_stores_that_are_open(s3_server: S3Server, s3_bucket: str) -> None:
    dataio.write(f"{s3_bucket}/x", b"there")
    store, _ = open_store(f"{s3_bucket}/x")
    dataio.configure_endpoint("s3", "http://127.0.0.1:9")
    dataio.configure_transport("s3", max_attempts=1)
    with pytest.raises(ConnectionError):
        dataio.read(f"{s3_bucket}/x")
    assert store.get("x") == b"there", "requests that hold the former store end as they began"
    dataio.configure_endpoint("s3", s3_server.url)
    assert dataio.read(f"{s3_bucket}/x") == b"there"


def test_configuring_while_others_read_breaks_no_read(s3_bucket: str) -> None:
    dataio.write(f"{s3_bucket}/x", b"there")
    wrong: list[object] = []

    def read() -> None:
        for _ in range(20):
            try:
                if dataio.read(f"{s3_bucket}/x") != b"there":
                    wrong.append("other bytes")
            except Exception as error:
                wrong.append(error)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for attempts in range(1, 40):
        dataio.configure_transport("s3", max_attempts=attempts)
    for thread in threads:
        thread.join(60)
    assert wrong == []


def test_a_configuration_travels_whole() -> None:
    dataio.configure_credentials("s3", bucket="mine", **KEYS)
    dataio.configure_endpoint("gs", "http://127.0.0.1:1")
    dataio.configure_transport("https", timeout_secs=3)
    taken = export_config()
    dataio.clear_credentials()
    dataio.clear_transport_overrides()
    apply_config(taken)
    assert export_config() == taken


def test_worker_processes_read_with_the_credentials_of_the_loader(
    monkeypatch: pytest.MonkeyPatch, two_workers: None, s3_server: S3Server, s3_bucket: str
) -> None:
    """Ranges are asked for by the process that decodes; neither its environment nor a file names the key."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    tensors = {name: np.full(1 << 16, i, np.float32) for i, name in enumerate("abc")}
    dataio.write(f"{s3_bucket}/w", safetensors.numpy.save(tensors))
    stage = dataio.slot("x").decode_safetensors(tensor_key="c")
    with dataio.pipeline(stage, dataio.batch(1)).bind([{"x": f"{s3_bucket}/w"}]).run("numpy", workers="process", seed=1) as loader:
        (batch,) = loader
        assert float(np.asarray(batch["x"][0])[0]) == 2.0
        workers = psutil.Process().children(recursive=True)
        assert workers
        assert not any(SECRET_ACCESS_KEY in value for worker in workers for value in worker.environ().values())


def test_a_key_that_the_server_refuses_is_no_missing_object(s3_server: S3Server, s3_bucket: str) -> None:
    dataio.write(f"{s3_bucket}/secret/x", b"there")
    s3_server.deny(s3_bucket.removeprefix("s3://"), "secret/")
    with pytest.raises(AccessDeniedError) as caught:
        dataio.read(f"{s3_bucket}/secret/x")
    assert not isinstance(caught.value, FileNotFoundError)


# ------------------------------------------------------------------------------------------------------ environment


def test_every_variable_is_listed_once() -> None:
    names = [variable["name"] for variable in dataio.env_vars()]
    assert len(names) == len(set(names))
    assert {"AWS_SECRET_ACCESS_KEY", "HF_TOKEN", "DATAIO_CACHE_DIR", "DATAIO_IO_WORKERS", "DATAIO_OBJECT_SHARDS"} <= set(names)


@pytest.mark.parametrize("setting", [s for s in IO_SETTINGS if not isinstance(s, ProviderSetting)], ids=lambda s: s.name)
def test_an_unset_variable_has_the_value_that_is_listed(monkeypatch: pytest.MonkeyPatch, setting: Any) -> None:
    monkeypatch.delenv(setting.name, raising=False)
    shown = {"unset": "", "0": False} if setting.default in ("unset", "0") else {}
    expected = shown.get(setting.default, setting.default)
    assert setting.get() == expected or str(setting.get()) == expected or setting.get() == float(expected)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("DATAIO_OBJECT_MAX_ATTEMPTS", "0"),
        ("DATAIO_OBJECT_REQUEST_TIMEOUT_SECS", "nan"),
        ("DATAIO_HTTP_RETRY_DEADLINE_SECS", "-1"),
        ("DATAIO_S3_HTTP_VERSION", "h3"),
    ],
)
def test_a_variable_that_cannot_be_used_is_an_error_that_names_it(monkeypatch: pytest.MonkeyPatch, name: str, text: str) -> None:
    monkeypatch.setenv(name, text)
    with pytest.raises(ValueError, match=name):
        transport_for("s3")


@pytest.mark.parametrize("name", ["AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "HF_TOKEN", "AZURE_STORAGE_SAS_TOKEN"])
def test_secret_variables_are_listed_without_their_value(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "value-that-nobody-may-see")
    (variable,) = (v for v in dataio.env_vars() if v["name"] == name)
    assert variable["current"] == "***"
