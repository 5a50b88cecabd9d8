"""Training sets as files: what `BoundPipeline.sink_parquet` and its siblings do.

`run` drives the loader and the writing threads, `manifest` keeps how far the sink has come, `rows` takes batches apart, and one
module per format turns the rows of a shard into a file.
"""
