"""TFRecord files: framing, `tf.train.Example`, and where the records lie."""
