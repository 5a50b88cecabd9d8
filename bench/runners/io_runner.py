"""One client, one case of bench/io.py, in a process of its own: prints one line of JSON.

Every client does the same work and is asked for its best way to do it; where several are plausible (threads, asyncio) all
are tried and the fastest counts. What comes is checked: number of bytes, number of keys.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import resource
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

BUCKET = "bucket"
IN_FLIGHT = 64
RANGE_BYTES = 4_096
THREADS = (4, 16, IN_FLIGHT)
KEY, SECRET, REGION = "AKIDEXAMPLE", "wJalrXUtnFEMI-K7MDENG", "us-east-1"

Way = Callable[[], tuple[int, int]]
"""One way to do a case; gives the number of items and of bytes that came."""


def on_threads(get: Callable[[Any], Any], items: Sequence[Any], threads: int) -> tuple[int, int]:
    """`get` of every item, on a pool of threads."""
    with ThreadPoolExecutor(threads) as pool:
        sizes = list(pool.map(lambda item: len(get(item)), items, chunksize=8))
    return len(sizes), sum(sizes)


async def in_flight(get: Callable[[Any], Coroutine[Any, Any, Any]], items: Sequence[Any]) -> tuple[int, int]:
    """`get` of every item, at most IN_FLIGHT at once."""
    todo, sizes = iter(items), []

    async def worker() -> None:
        for item in todo:
            sizes.append(len(await get(item)))

    await asyncio.gather(*(worker() for _ in range(IN_FLIGHT)))
    return len(sizes), sum(sizes)


class Case:
    """What is asked for.

    Attributes:
        keys: of the small objects, for "objects".
        ranges: (offset, size) of the large object, for "ranges".
        size: of the large object.
    """

    def __init__(self, args: argparse.Namespace) -> None:
        self.name, self.url, self.protocol = args.case, args.url, args.protocol
        self.keys = [f"small/{i:05d}.bin" for i in range(args.objects)]
        self.size = args.large
        draw = random.Random(0)
        self.ranges = [(draw.randrange(self.size - RANGE_BYTES), RANGE_BYTES) for _ in range(args.ranges)]

    @property
    def base(self) -> str:
        """What stands before a key in a URI."""
        return f"s3://{BUCKET}/" if self.protocol == "s3" else f"{self.url}/{BUCKET}/"


def dataio_ways(case: Case, module: Any) -> list[Way]:
    """dataio and dataio-rs: the same verbs."""
    module.configure_credentials("s3", method="explicit", access_key_id=KEY, secret_access_key=SECRET)
    module.configure_endpoint("s3", case.url)
    if case.name == "objects":
        uris = [case.base + key for key in case.keys]
        ways: list[Way] = [lambda n=n: on_threads(module.read, uris, n) for n in THREADS]

        def pipeline() -> tuple[int, int]:
            pipe = module.pipeline(module.slot("x").decode_bytes(), module.batch(64, prefetch=4))
            count = size = 0
            with pipe.bind([{"key": uri, "x": uri} for uri in uris]).run("numpy", concurrency=IN_FLIGHT) as loader:
                for batch in loader:
                    values = batch["x"]
                    count += len(values)
                    size += sum(len(v) if isinstance(v, bytes) else v.nbytes for v in values)
            return count, size

        return [*ways, pipeline]
    large = case.base + "large.bin"
    if case.name == "large":
        return [lambda: (1, len(module.read(large)))]
    if case.name == "ranges":
        return [lambda n=n: on_threads(lambda r: module.read(large, offset=r[0], size=r[1]), case.ranges, n) for n in THREADS]
    return [lambda: (len(module.ls(f"s3://{BUCKET}/many/")), 0)]


def ways_of_dataio(case: Case) -> list[Way]:
    import dataio

    return dataio_ways(case, dataio)


def ways_of_obstore(case: Case) -> list[Way]:
    import obstore
    from obstore.store import HTTPStore, S3Store

    options: Any = {"allow_http": True}
    store: Any
    if case.protocol == "s3":
        store = S3Store(
            BUCKET,
            endpoint=case.url,
            access_key_id=KEY,
            secret_access_key=SECRET,
            region=REGION,
            virtual_hosted_style_request=False,
            client_options=options,
        )
    else:
        store = HTTPStore.from_url(f"{case.url}/{BUCKET}", client_options=options)

    if case.name == "objects":

        async def get(key: str) -> Any:
            return await (await obstore.get_async(store, key)).bytes_async()

        ways: list[Way] = [lambda n=n: on_threads(lambda k: obstore.get(store, k).bytes(), case.keys, n) for n in THREADS]
        return [*ways, lambda: asyncio.run(in_flight(get, case.keys))]
    if case.name == "large":
        return [lambda: (1, len(obstore.get(store, "large.bin").bytes()))]
    if case.name == "ranges":

        def part(r: tuple[int, int]) -> Any:
            return obstore.get_range(store, "large.bin", start=r[0], length=r[1])

        async def part_async(r: tuple[int, int]) -> Any:
            return await obstore.get_range_async(store, "large.bin", start=r[0], length=r[1])

        ways = [lambda n=n: on_threads(part, case.ranges, n) for n in THREADS]
        return [*ways, lambda: asyncio.run(in_flight(part_async, case.ranges))]
    return [lambda: (sum(len(page) for page in obstore.list(store, prefix="many")), 0)]


def ways_of_boto3(case: Case) -> list[Way]:
    import boto3
    from botocore.config import Config

    client = boto3.client(
        "s3",
        endpoint_url=case.url,
        aws_access_key_id=KEY,
        aws_secret_access_key=SECRET,
        region_name=REGION,
        config=Config(max_pool_connections=IN_FLIGHT, s3={"addressing_style": "path"}),
    )

    def get(key: str) -> bytes:
        data: bytes = client.get_object(Bucket=BUCKET, Key=key)["Body"].read()
        return data

    def part(r: tuple[int, int]) -> bytes:
        data: bytes = client.get_object(Bucket=BUCKET, Key="large.bin", Range=f"bytes={r[0]}-{r[0] + r[1] - 1}")["Body"].read()
        return data

    if case.name == "objects":
        return [lambda n=n: on_threads(get, case.keys, n) for n in THREADS]
    if case.name == "large":
        return [lambda: (1, len(get("large.bin")))]
    if case.name == "ranges":
        return [lambda n=n: on_threads(part, case.ranges, n) for n in THREADS]
    pages = client.get_paginator("list_objects_v2")
    return [lambda: (sum(len(p["Contents"]) for p in pages.paginate(Bucket=BUCKET, Prefix="many/")), 0)]


def ways_of_s3fs(case: Case) -> list[Way]:
    import s3fs

    system = s3fs.S3FileSystem(key=KEY, secret=SECRET, endpoint_url=case.url, use_listings_cache=False)
    if case.name == "objects":
        paths = [f"{BUCKET}/{key}" for key in case.keys]

        def whole() -> tuple[int, int]:
            found = system.cat(paths, batch_size=IN_FLIGHT)
            return len(found), sum(map(len, found.values()))

        return [whole]
    path = f"{BUCKET}/large.bin"
    if case.name == "large":
        return [lambda: (1, len(system.cat_file(path)))]
    if case.name == "ranges":
        starts = [r[0] for r in case.ranges]

        def parts() -> tuple[int, int]:
            ends = [start + RANGE_BYTES for start in starts]
            found = system.cat_ranges([path] * len(starts), starts, ends, batch_size=IN_FLIGHT)
            return len(found), sum(map(len, found))

        return [parts]
    return [lambda: (len(system.find(f"{BUCKET}/many")), 0)]


def ways_of_aiohttp(case: Case) -> list[Way]:
    import aiohttp

    base = f"{case.url}/{BUCKET}/"

    async def run(items: Sequence[Any], ask: Callable[[Any], tuple[str, dict[str, str]]]) -> tuple[int, int]:
        connector = aiohttp.TCPConnector(limit=IN_FLIGHT)
        async with aiohttp.ClientSession(connector=connector) as session:

            async def get(item: Any) -> bytes:
                key, headers = ask(item)
                async with session.get(base + key, headers=headers) as answer:
                    answer.raise_for_status()
                    return await answer.read()

            return await in_flight(get, items)

    if case.name == "objects":
        return [lambda: asyncio.run(run(case.keys, lambda key: (key, {})))]
    if case.name == "large":
        return [lambda: asyncio.run(run(["large.bin"], lambda key: (key, {})))]
    return [
        lambda: asyncio.run(
            run(case.ranges, lambda r: ("large.bin", {"Range": f"bytes={r[0]}-{r[0] + r[1] - 1}"}))
        )
    ]


CLIENTS: dict[str, Callable[[Case], list[Way]]] = {
    "dataio": ways_of_dataio,
    "obstore": ways_of_obstore,
    "boto3": ways_of_boto3,
    "s3fs": ways_of_s3fs,
    "aiohttp": ways_of_aiohttp,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--client", required=True, choices=CLIENTS)
    parser.add_argument("--case", required=True, choices=("objects", "large", "ranges", "listing"))
    parser.add_argument("--protocol", required=True, choices=("s3", "http"))
    parser.add_argument("--url", required=True)
    parser.add_argument("--objects", type=int, required=True)
    parser.add_argument("--object-bytes", type=int, required=True)
    parser.add_argument("--large", type=int, required=True)
    parser.add_argument("--ranges", type=int, required=True)
    parser.add_argument("--keys", type=int, required=True)
    args = parser.parse_args()
    case = Case(args)
    expected = {
        "objects": (args.objects, args.objects * args.object_bytes),
        "large": (1, args.large),
        "ranges": (args.ranges, args.ranges * RANGE_BYTES),
        "listing": (args.keys, 0),
    }[args.case]
    seconds = []
    for way in CLIENTS[args.client](case):
        for _ in range(1 if args.case == "listing" else 2):  # the first time makes connections
            began = time.perf_counter()
            got = way()
            seconds.append(time.perf_counter() - began)
            if got != expected:
                raise SystemExit(f"{got[0]} items of {got[1]} bytes came, {expected} were asked for")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"seconds": min(seconds), "items": expected[0], "bytes": expected[1], "peak_rss": peak}))


if __name__ == "__main__":
    main()
