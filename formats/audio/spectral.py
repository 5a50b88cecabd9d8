"""Spectrogram, mel filterbank and MFCC."""
