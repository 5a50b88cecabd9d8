"""HDF5 files, read by h5py."""
