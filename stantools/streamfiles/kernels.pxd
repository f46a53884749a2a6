"""Interface for other compiled kernels: records, written to any place."""

from libc.stdint cimport int64_t, uint8_t, uint64_t


cdef uint8_t* put_record(
    uint8_t* p, uint64_t sequence, int64_t time, const void* subject, size_t subject_size, const void* header,
    size_t header_size, const void* payload, size_t payload_size, const uint8_t* key
) noexcept nogil

# Raises ValueError for content too large for a record.
cdef int refuse(uint64_t subject_size, uint64_t size) except -1

cdef const uint8_t* key_of(bytes key) except NULL
