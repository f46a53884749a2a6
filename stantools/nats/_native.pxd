"""What other compiled kernels use: names, to be looked up in buffers (see `_names.pxd`)."""

from stantools.nats._names cimport HashTable


cdef class Names:
    cdef dict numbers
    cdef HashTable table

    cdef int resize(self, size_t size) except -1
