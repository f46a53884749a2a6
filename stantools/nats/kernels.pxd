"""What other compiled kernels use: names, to be looked up in buffers (see `_names.pxd`)."""

from libc.stdint cimport int32_t, uint8_t

from stantools.nats._names cimport HashTable


cdef struct Head:
    const uint8_t* name
    Py_ssize_t size
    int32_t number


cdef class Names:
    cdef dict numbers
    cdef HashTable table
    cdef tuple kept  # what the heads point to
    cdef Head* heads
    cdef Py_ssize_t head_count
    cdef Py_ssize_t last_head  # which was the one last time, mostly the one again

    cdef int resize(self, size_t size) except -1
