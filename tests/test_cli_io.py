"""The commands over files and objects, run as a user does: in a process of their own, against local trees, S3 and GCS."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from dataio import cli_io

from .servers.gcs import GcsServer
from .servers.s3 import ACCESS_KEY_ID, SECRET_ACCESS_KEY, S3Server

Run = Callable[..., "subprocess.CompletedProcess[bytes]"]
DATAIO = [sys.executable, "-m", "dataio"]
ROOT = Path(__file__).parents[1]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """`run("ls", uri)` runs the command in `tmp_path`; `environment=` adds variables."""

    def made(*arguments: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[bytes]:
        env = {**os.environ, "PYTHONPATH": "", **(environment or {})}
        return subprocess.run([*DATAIO, *arguments], capture_output=True, cwd=tmp_path, env=env, timeout=100)

    return made


@pytest.fixture
def stores(s3_server: S3Server, gcs_server: GcsServer) -> dict[str, str]:
    """Variables that lead to the test servers."""
    return {
        "AWS_ACCESS_KEY_ID": ACCESS_KEY_ID,
        "AWS_SECRET_ACCESS_KEY": SECRET_ACCESS_KEY,
        "AWS_ENDPOINT_URL_S3": s3_server.url,
        "STORAGE_EMULATOR_HOST": gcs_server.url,
    }


TREE = {"a.txt": b"alpha", "sub/b.bin": bytes(range(256)) * 500, "sub/.hidden": b"h", "sub/deep/d e+f%20#": b"odd", "ü": b"", "a[1]": b"brackets"}


def plant(root: Path, tree: dict[str, bytes] = TREE) -> Path:
    for name, data in tree.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return root


def grown(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def told(done: subprocess.CompletedProcess[bytes], status: int = 0) -> str:
    """What a command printed, as text; it ended with `status`, and said why on one line if that is not 0."""
    error = done.stderr.decode()
    assert done.returncode == status, error
    assert error.count("\n") == (1 if status else 0), error
    assert not status or error.startswith("dataio: ")
    return done.stdout.decode() if not status else error


# ---------------------------------------------------------------- between stores


def test_a_tree_goes_from_file_to_s3_to_gcs_to_file_and_is_the_same(run: Run, stores: dict[str, str], s3_bucket: str, gs_bucket: str, tmp_path: Path) -> None:
    plant(tmp_path / "from")
    for source, target in [("from", f"{s3_bucket}/t"), (f"{s3_bucket}/t", f"{gs_bucket}/u"), (f"{gs_bucket}/u", "to")]:
        assert told(run("cp", "-r", source, target, environment=stores)) == ""
    assert grown(tmp_path / "to") == TREE


def test_what_was_copied_is_listed_counted_read_and_removed(run: Run, stores: dict[str, str], s3_bucket: str, tmp_path: Path) -> None:
    plant(tmp_path / "from")
    copied = json.loads(told(run("cp", "-r", "from", f"{s3_bucket}/t", "--json", environment=stores)))
    assert copied == {"copied": len(TREE), "target": f"{s3_bucket}/t"}
    uris = sorted(f"{s3_bucket}/t/{name}" for name in TREE)
    assert sorted(told(run("ls", f"{s3_bucket}/t/", environment=stores)).splitlines()) == uris
    counted = json.loads(told(run("--json", "du", f"{s3_bucket}/t", environment=stores)))
    assert (counted["bytes"], counted["objects"]) == (sum(map(len, TREE.values())), len(TREE))
    level = told(run("ls", "-1", f"{s3_bucket}/t", environment=stores)).splitlines()
    assert sorted(level) == sorted(f"{s3_bucket}/t/{name}" for name in ("a.txt", "a[1]", "ü", "sub/"))
    assert run("cat", f"{s3_bucket}/t/a.txt", f"{s3_bucket}/t/a[1]", environment=stores).stdout == b"alphabrackets"
    assert told(run("cp", f"{s3_bucket}/t/sub/*", "flat", environment=stores)) == ""
    assert grown(tmp_path / "flat") == {".hidden": b"h", "b.bin": TREE["sub/b.bin"]}
    assert told(run("rm", "-r", f"{s3_bucket}/t/sub", environment=stores)) == ""
    assert told(run("rm", f"{s3_bucket}/t/a*", environment=stores)) == ""
    assert told(run("ls", s3_bucket, environment=stores)) == f"{s3_bucket}/t/ü\n"


def test_removing_a_folder_leaves_its_neighbour(run: Run, stores: dict[str, str], s3_bucket: str, tmp_path: Path) -> None:
    plant(tmp_path / "from", {"p/x": b"1", "p2/x": b"2"})
    told(run("cp", "-r", "from", f"{s3_bucket}/t", environment=stores))
    told(run("rm", "-r", f"{s3_bucket}/t/p", environment=stores))
    assert told(run("ls", s3_bucket, environment=stores)) == f"{s3_bucket}/t/p2/x\n"


def test_errors_of_a_store_are_one_line_and_tell_missing_from_forbidden(run: Run, stores: dict[str, str], s3_bucket: str, s3_server: S3Server) -> None:
    assert f"{s3_bucket}/none" in told(run("head", f"{s3_bucket}/none", environment=stores), 3)
    assert f"{s3_bucket}/none" in told(run("cat", f"{s3_bucket}/none", environment=stores), 3)
    assert "none-such" in told(run("ls", "s3://none-such-bucket/", environment=stores), 3)
    s3_server.deny(s3_bucket.removeprefix("s3://"))
    assert f"{s3_bucket}/none" in told(run("head", f"{s3_bucket}/none", environment=stores), 1)
    assert SECRET_ACCESS_KEY not in told(run("rm", f"{s3_bucket}/none", environment=stores), 1)


def test_sign(run: Run, stores: dict[str, str], s3_bucket: str, tmp_path: Path) -> None:
    import urllib3

    plant(tmp_path, {"f": b"signed"})
    told(run("cp", "f", f"{s3_bucket}/f", environment=stores))
    url = told(run("sign", f"{s3_bucket}/f", "--expires", "60", environment=stores)).strip()
    assert urllib3.request("GET", url).data == b"signed"
    facts = json.loads(told(run("sign", "--json", "--method", "put", f"{s3_bucket}/f", environment=stores)))
    assert (facts["method"], facts["expires_secs"]) == ("PUT", 3600)


# ---------------------------------------------------------------- local trees


def test_ls_shows_absolute_uris_and_sizes(run: Run, tmp_path: Path) -> None:
    plant(tmp_path / "d", {"b": bytes(1536), "a": b"123", ".h/x": b""})
    root = f"file://{tmp_path}/d"
    assert told(run("ls", "d")).splitlines() == [f"{root}/.h/x", f"{root}/a", f"{root}/b"]
    assert told(run("ls", "--long", "d")).splitlines()[1:] == [f"{'3 B':>12}  {root}/a", f"{'1.50 KiB':>12}  {root}/b"]
    assert json.loads(told(run("--json", "ls", "d"))) == json.loads(told(run("ls", "d", "--json")))
    assert json.loads(told(run("ls", "--json", "d/a"))) == {"prefix": "d/a", "count": 1, "objects": [f"{root}/a"]}
    assert told(run("ls", "-1", "d")).splitlines() == [f"{root}/.h/", f"{root}/a", f"{root}/b"]


def test_an_empty_folder_is_no_error_and_a_missing_one_is(run: Run, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert told(run("ls", "empty")) == ""
    assert told(run("du", "empty")) == f"{'0 B':>12}  {0:>9}  empty\n"
    for command in ("ls", "du", "head", "cat", "rm"):
        assert "nothere" in told(run(command, "nothere"), 3)


def test_head(run: Run, tmp_path: Path) -> None:
    plant(tmp_path, {"f": bytes(2048)})
    text = told(run("head", "f"))
    assert text.splitlines()[0] == f"  {'url':<26}file://{tmp_path}/f"
    assert f"  {'content_length':<26}2048 (2.00 KiB)\n" in text
    facts = json.loads(told(run("head", "f", "--json")))
    assert list(facts) == ["url", "status", "content_length", "content_type", "etag", "last_modified", "http_version"]
    assert facts["content_length"] == 2048


def test_cat_takes_ranges_patterns_and_an_output(run: Run, tmp_path: Path) -> None:
    plant(tmp_path, {"x1": b"0123456789", "x2": b"abcdef"})
    assert run("cat", "x1", "--offset", "3", "--size", "4").stdout == b"3456"
    assert run("cat", "x?", "--offset", "4").stdout == b"456789ef"
    done = run("cat", "x1", "x2", "-o", "both")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"16 B written to both\n")
    assert (tmp_path / "both").read_bytes() == b"0123456789abcdef"
    told(run("cat", "x1", "nothere", "-o", "both"), 3)
    assert (tmp_path / "both").read_bytes() == b"0123456789abcdef"
    assert sorted(os.listdir(tmp_path)) == ["both", "x1", "x2"]


def test_sync_copies_what_differs_and_removes_when_told(run: Run, tmp_path: Path) -> None:
    plant(tmp_path / "src", {"a": b"1", "b": b"22"})
    plant(tmp_path / "dst", {"b": b"2", "c": b"3"})
    dry = told(run("sync", "src", "dst", "--delete", "--dry-run")).splitlines()
    assert dry == ["copy  dst/a", "copy  dst/b", "delete  dst/c", "would copy 2, delete 1"]
    assert grown(tmp_path / "dst") == {"b": b"2", "c": b"3"}
    assert told(run("sync", "src", "dst")) == "copied 2, deleted 0\n"
    found = json.loads(told(run("sync", "--delete", "src", "dst", "--json")))
    assert (found["copied"], found["deleted"]) == (0, 1)
    assert grown(tmp_path / "dst") == grown(tmp_path / "src")


def test_rm_wants_r_for_a_folder_and_a_match_for_a_pattern(run: Run, tmp_path: Path) -> None:
    plant(tmp_path / "d", {"x": b"", "y": b""})
    assert "-r" in told(run("rm", "d"), 1)
    assert "nothing matches" in told(run("rm", "d/*.jpg"), 3)
    assert told(run("rm", "-f", "d/*.jpg", "nothere")) == ""
    assert json.loads(told(run("rm", "d/*", "--json"))) == {"removed": 2}
    assert told(run("rm", "-r", "d")) == ""
    assert os.listdir(tmp_path) == []
    assert "root" in told(run("rm", "-r", "/../"), 1)


def test_a_name_with_wildcards_that_exists_is_that_one(run: Run, tmp_path: Path) -> None:
    plant(tmp_path, {"a[1]": b"", "a1": b"", "b1": b""})
    told(run("rm", "a[1]"))
    assert sorted(os.listdir(tmp_path)) == ["a1", "b1"]
    told(run("rm", "--literal", "b[1]"), 3)
    told(run("rm", "b[1]"))
    assert os.listdir(tmp_path) == ["a1"]


def test_cp_of_many_goes_into_a_folder_and_folders_keep_their_names(run: Run, tmp_path: Path) -> None:
    plant(tmp_path, {"d/x": b"1", "e/x": b"2", "f": b"3"})
    assert "-r" in told(run("cp", "d", "to"), 1)
    told(run("cp", "-r", "d", "e", "f", "to"))
    assert grown(tmp_path / "to") == {"d/x": b"1", "e/x": b"2", "f": b"3"}
    told(run("cp", "f", "to/"))
    told(run("cp", "f", "g"))
    assert (tmp_path / "g").read_bytes() == (tmp_path / "to" / "f").read_bytes() == b"3"


@pytest.mark.parametrize(
    "arguments",
    [["cp", "one"], ["cat"], ["head"], ["cat", "x", "--offset", "-1"], ["cp", "a", "b", "--workers", "0"], ["sign", "x", "--method", "POST"], ["nope"]],
)
def test_a_wrong_command_line_exits_2(arguments: list[str], run: Run) -> None:
    done = run(*arguments)
    assert done.returncode == 2
    assert done.stderr.startswith(b"usage: ")


def test_an_unknown_scheme_and_a_wrong_uri_exit_1(run: Run) -> None:
    assert "known:" in told(run("cat", "s4://b/k"), 1)
    assert "no bucket" in told(run("ls", "s3:///k"), 1)


def test_progress_is_drawn_when_asked_for_and_not_into_a_pipe(run: Run, tmp_path: Path) -> None:
    plant(tmp_path / "d")
    assert run("cp", "-r", "d", "e").stderr == b""
    assert b"cp: " in run("cp", "-r", "d", "f", "--progress").stderr


def test_a_reader_that_goes_away_ends_cat_quietly(tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(bytes(1 << 24))
    with subprocess.Popen([*DATAIO, "cat", "big"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path) as cat:
        assert cat.stdout is not None
        assert cat.stderr is not None
        cat.stdout.read(10)
        cat.stdout.close()
        assert cat.stderr.read() == b""
        assert cat.wait(60) == 141


def test_ctrl_c_exits_130_and_leaves_nothing(tmp_path: Path) -> None:
    script = """
import sys, time
import dataio
from dataio.cli import main
from dataio.io.store import Body, ObjectInfo, Store
class Slow(Store):
    scheme, name = "slow", ""
    def get(self, *args, **options): raise NotImplementedError
    def head(self, key, **options): return ObjectInfo(key, 2)
    def open(self, key, *args, **options):
        def chunks():
            yield b"x"
            print("begun", file=sys.stderr, flush=True)
            time.sleep(60)
        return Body(ObjectInfo(key, 2), chunks())
dataio.register_store("slow", lambda uri: Slow())
sys.exit(main(sys.argv[1:]))
"""
    with subprocess.Popen([sys.executable, "-c", script, "cat", "slow://x", "-o", "out"], stderr=subprocess.PIPE, cwd=tmp_path) as cat:
        assert cat.stderr is not None
        assert cat.stderr.readline() == b"begun\n"
        time.sleep(0.1)
        cat.send_signal(signal.SIGINT)
        assert cat.stderr.read() == b""
        assert cat.wait(60) == 130
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.00 KiB"), (1536, "1.50 KiB"), (1 << 20, "1.00 MiB"), (5 << 30, "5.00 GiB"), (3 << 50, "3072.00 TiB")],
)
def test_sizes(size: int, text: str) -> None:
    assert cli_io.human(size) == text
