"""Where morsels are worked on: a pool of threads or of processes, one contract (`base.Executor`)."""
