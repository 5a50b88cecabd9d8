"""Feed damaged files to every parser, by coverage-guided mutation (atheris): each target of tests/fuzz/targets in a process of its own.

    python scripts/fuzz.py                          every target for a minute
    python scripts/fuzz.py safetensors tar --seconds 600

An exception that the parser does not document, a crash, an input that takes more than 20 seconds, or more than 2 GiB of
memory is a finding: its input is kept under build/fuzz/, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TARGETS = sorted(path.stem for path in (ROOT / "tests" / "fuzz" / "targets").glob("[a-z]*.py"))
MEMORY_MIB, INPUT_SECONDS, INPUT_BYTES = 2_048, 20, 65_536


def fuzz(name: str, seconds: int) -> tuple[bool, str]:
    """Whether a target came through, and what it printed."""
    findings = ROOT / "build" / "fuzz"
    findings.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "tests.fuzz.drive", name, f"-max_total_time={seconds}", f"-rss_limit_mb={MEMORY_MIB}"]
    command += [f"-timeout={INPUT_SECONDS}", f"-max_len={INPUT_BYTES}", f"-artifact_prefix={findings}/{name}-"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, errors="replace", check=False)
    return done.returncode == 0, done.stdout + done.stderr


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("targets", nargs="*", help=f"of {', '.join(TARGETS)} (default: all)")
    parser.add_argument("--seconds", type=int, default=60, help="for each target (default: 60)")
    options = parser.parse_args()
    if unknown := set(options.targets) - set(TARGETS):
        parser.error(f"no such target: {', '.join(sorted(unknown))}; there are {', '.join(TARGETS)}")
    failed = False
    for name in options.targets or TARGETS:
        passed, output = fuzz(name, options.seconds)
        lines = output.strip().splitlines()
        runs = next((line.strip() for line in reversed(lines) if line.startswith("Done ")), "")
        print(f"{name}: {runs or 'no findings' if passed else 'FOUND SOMETHING'}", flush=True)
        if not passed:
            failed = True
            print("\n".join(lines[-60:]), flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
