"""S3 by moto's server: multipart uploads, paging, signed URLs, bucket policies."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from .process import HOST, NotInstalledError, free_port, running

ACCESS_KEY_ID, SECRET_ACCESS_KEY, REGION = "AKIDEXAMPLEFORTESTS", "secret-of-the-tests-0123456789", "us-east-1"


@dataclass(frozen=True)
class S3Server:
    """Where it listens, such as "http://127.0.0.1:1234". It takes any keys, except where `deny` was called."""

    url: str

    def client(self) -> Any:
        """A boto3 client."""
        import boto3
        from botocore.config import Config

        return boto3.client(
            "s3",
            endpoint_url=self.url,
            region_name=REGION,
            aws_access_key_id=ACCESS_KEY_ID,
            aws_secret_access_key=SECRET_ACCESS_KEY,
            config=Config(s3={"addressing_style": "path"}, retries={"max_attempts": 1}),
        )

    def deny(self, bucket: str, prefix: str = "") -> None:
        """Answer 403 to every request for an object whose key begins with `prefix`; without one, to listings too."""
        objects = f"arn:aws:s3:::{bucket}/{prefix}*"
        resources = [objects] if prefix else [objects, f"arn:aws:s3:::{bucket}"]
        statement = {"Effect": "Deny", "Principal": "*", "Action": "s3:*", "Resource": resources}
        policy = {"Version": "2012-10-17", "Statement": [statement]}
        self.client().put_bucket_policy(Bucket=bucket, Policy=json.dumps(policy))


@contextmanager
def s3() -> Iterator[S3Server]:
    """moto's server.

    Raises:
        NotInstalledError: moto is not installed.
    """
    try:
        import moto.server  # noqa: F401
    except ImportError as error:
        raise NotInstalledError("S3 needs moto: pip install 'moto[server,s3]'") from error
    port = free_port()
    with running([sys.executable, "-m", "moto.server", "-H", HOST, "-p", str(port)], port):
        yield S3Server(f"http://{HOST}:{port}")
