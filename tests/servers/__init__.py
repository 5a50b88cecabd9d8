"""Servers on loopback for the tests, the examples and the benchmarks; each is a context manager that starts a process of its own.

    with s3() as server:
        server.client().create_bucket(Bucket="b")

A server that is not installed raises `NotInstalledError` with what to install.
"""
