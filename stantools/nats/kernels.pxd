"""Interface for other compiled kernels: names, looked up in buffers (see `_names.pxd`)."""

from libc.stdint cimport int32_t, uint8_t

from stantools.nats._names cimport HashTable


cdef struct Head:
    const uint8_t* name
    Py_ssize_t size
    int32_t number


cdef class Names:
    cdef dict numbers
    cdef HashTable table
    cdef tuple kept  # keeps the names of the heads alive
    cdef Head* heads
    cdef Py_ssize_t head_count
    cdef Py_ssize_t last_head  # the last match, which is usually the next one

    cdef int resize(self, size_t size) except -1
