# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The kernel of `broker.stores.file.plain`, compiled; see there."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

NAME = "native"

cdef enum:
    # The longest record: a header and two fields of ten bytes, each with its tag.
    LONGEST = 30
    HEADER = 8


cdef inline int put_varint(uint8_t *target, uint64_t value) noexcept nogil:
    cdef int size = 0
    while value >= 0x80:
        target[size] = <uint8_t> (value | 0x80)
        value >>= 7
        size += 1
    target[size] = <uint8_t> value
    return size + 1


cdef inline void store32(uint8_t *target, uint32_t value) noexcept nogil:
    target[0] = <uint8_t> value
    target[1] = <uint8_t> (value >> 8)
    target[2] = <uint8_t> (value >> 16)
    target[3] = <uint8_t> (value >> 24)


def encode_flow(int kind, number, sequences, crc):
    """See `plain.encode_flow`."""
    cdef const uint32_t[:, ::1] tables = crc.tables
    cdef const uint32_t *table = &tables[0, 0]
    cdef uint8_t[LONGEST] prefix
    cdef int prefix_size = 0, size, i
    cdef uint32_t begin = 0xFFFFFFFF, register
    cdef uint64_t subscription = number, sequence
    cdef Py_ssize_t count = len(sequences)
    cdef uint8_t *target
    cdef uint8_t *record
    cdef bytes result
    if subscription:
        prefix[0] = 0x08
        prefix_size = 1 + put_varint(prefix + 1, subscription)
    for i in range(prefix_size):
        begin = table[(begin ^ prefix[i]) & 0xFF] ^ (begin >> 8)
    target = <uint8_t *> malloc(count * LONGEST + 1)
    if target == NULL:
        raise MemoryError
    try:
        record = target
        for each in sequences:
            if record - target > (count - 1) * LONGEST:
                raise ValueError("more sequences than were announced")
            sequence = each
            memcpy(record + HEADER, prefix, prefix_size)
            size = prefix_size
            if sequence:
                record[HEADER + size] = 0x10
                size += 1 + put_varint(record + HEADER + size + 1, sequence)
            register = begin
            for i in range(HEADER + prefix_size, HEADER + size):
                register = table[(register ^ record[i]) & 0xFF] ^ (register >> 8)
            store32(record, <uint32_t> kind << 24 | <uint32_t> size)
            store32(record + 4, ~register)
            record += HEADER + size
        result = PyBytes_FromStringAndSize(<char *> target, record - target)
    finally:
        free(target)
    return result
