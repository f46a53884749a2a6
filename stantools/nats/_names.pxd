"""A hash table from names to small numbers that is looked up by position and size (for `kernels.pyx` and the streaming kernels).

Names come from clients, so the hash is keyed: SipHash-1-3 with a secret key. Linear probing at a load of at most one
half; a removal moves later entries into the gap.
"""

from libc.stdint cimport int32_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp

from stantools.format._bytes cimport load64


cdef struct Entry:
    uint64_t hash
    const uint8_t* name  # NULL: free
    uint32_t size
    int32_t number


cdef struct HashTable:
    Entry* entries
    size_t mask  # number of entries (a power of two) minus one
    uint64_t key[2]


cdef inline uint64_t rotated(uint64_t x, int bits) noexcept nogil:
    return x << bits | x >> (64 - bits)


cdef inline void sip_round(uint64_t* v) noexcept nogil:
    v[0] += v[1]
    v[1] = rotated(v[1], 13) ^ v[0]
    v[0] = rotated(v[0], 32)
    v[2] += v[3]
    v[3] = rotated(v[3], 16) ^ v[2]
    v[0] += v[3]
    v[3] = rotated(v[3], 21) ^ v[0]
    v[2] += v[1]
    v[1] = rotated(v[1], 17) ^ v[2]
    v[2] = rotated(v[2], 32)


cdef inline uint64_t hash_of(const uint8_t* p, uint32_t size, const uint64_t* key) noexcept nogil:
    cdef uint64_t v[4]
    cdef uint64_t word = <uint64_t>size << 56
    cdef uint32_t left = size, i
    v[0] = key[0] ^ <uint64_t>0x736F6D6570736575
    v[1] = key[1] ^ <uint64_t>0x646F72616E646F6D
    v[2] = key[0] ^ <uint64_t>0x6C7967656E657261
    v[3] = key[1] ^ <uint64_t>0x7465646279746573
    while left >= 8:
        v[3] ^= load64(p)
        sip_round(v)
        v[0] ^= load64(p)
        p += 8
        left -= 8
    for i in range(left):
        word |= <uint64_t>p[i] << (8 * i)
    v[3] ^= word
    sip_round(v)
    v[0] ^= word
    v[2] ^= 0xFF
    for i in range(3):
        sip_round(v)
    return v[0] ^ v[1] ^ v[2] ^ v[3]


cdef inline Entry* entry_of(const HashTable* table, const uint8_t* name, uint32_t size) noexcept nogil:
    """The entry of a name, or the free one where it belongs."""
    cdef uint64_t value = hash_of(name, size, table.key)
    cdef size_t i = <size_t>value & table.mask
    cdef Entry* entry
    while True:
        entry = &table.entries[i]
        if entry.name == NULL:
            entry.hash = value  # for a caller that fills it
            return entry
        if entry.hash == value and entry.size == size and memcmp(entry.name, name, size) == 0:
            return entry
        i = (i + 1) & table.mask


cdef inline int32_t number_of(const HashTable* table, const uint8_t* name, uint32_t size) noexcept nogil:
    """The number of a name, -1 for none."""
    cdef Entry* entry = entry_of(table, name, size)
    return -1 if entry.name == NULL else entry.number


cdef inline void close_gap(const HashTable* table, size_t gap) noexcept nogil:
    """Frees an entry and moves later ones, so that each is still found from the start of its search."""
    cdef size_t i = gap
    cdef Entry* entry
    while True:
        i = (i + 1) & table.mask
        entry = &table.entries[i]
        if entry.name == NULL:
            break
        # It may move if the gap is not before the start of its own search.
        if ((i - <size_t>entry.hash) & table.mask) >= ((i - gap) & table.mask):
            table.entries[gap] = entry[0]
            gap = i
    table.entries[gap].name = NULL
