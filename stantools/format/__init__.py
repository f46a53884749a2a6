"""Bytes to records and back: envelope, CRC, index records, protobuf messages, encryption, scan kernels.

Pure functions over buffers. Nothing in this package opens a file.
"""
