"""Decoding of a Raft log's entries and of the messages in them (for `kernels.pyx`), as servers write them.

Other encodings are left to `stantools.format.raftlog`, whose rules these are. Functions that read return the position
after the bytes read, or NULL.
"""

from libc.stdint cimport uint8_t, uint64_t
from libc.string cimport memcmp

from stantools.format._fields cimport FOREIGN_SUBJECT, Channel, Message, any_varint, usual_message, varint_size

cdef struct Entry:
    uint64_t index
    uint64_t term
    uint64_t type
    const uint8_t* data
    const uint8_t* data_end

cdef struct Published:
    # A run of entries with successive messages of one channel.
    uint64_t first_index
    uint64_t last_index
    uint64_t term
    uint64_t channel_id
    uint64_t first
    uint64_t last
    uint64_t size
    Channel channel


cdef inline uint64_t big_endian(const uint8_t* p, int width) noexcept nogil:
    cdef uint64_t value = 0
    while width:
        value = value << 8 | p[0]
        p += 1
        width -= 1
    return value


cdef inline const uint8_t* text(const uint8_t* p, const uint8_t* end, const char* wanted, size_t size) noexcept nogil:
    return p + size if p != NULL and size <= <size_t>(end - p) and memcmp(p, wanted, size) == 0 else NULL


cdef inline const uint8_t* packed_number(const uint8_t* p, const uint8_t* end, uint64_t* value) noexcept nogil:
    """A MessagePack number that is not negative."""
    cdef int width
    if p == NULL or p == end:
        return NULL
    value[0] = p[0]
    if p[0] < 0x80:
        return p + 1
    if p[0] < 0xCC or p[0] > 0xCF:
        return NULL
    width = 1 << (p[0] - 0xCC)
    p += 1
    if width > end - p:
        return NULL
    value[0] = big_endian(p, width)
    return p + width


cdef inline bint usual_entry(const uint8_t* p, const uint8_t* end, Entry* entry) noexcept nogil:
    """Reads an entry of a Raft log as servers since 0.22 write it. False: the general decoder must decide."""
    cdef int width
    cdef uint64_t size
    p = text(p, end, b"\x86\xaaAppendedAt\xa8", 13)
    if p == NULL or end - p < 8:
        return False
    p = text(p + 8, end, b"\xa4Data", 5)
    if p == NULL or p == end:
        return False
    if p[0] & 0xE0 == 0xA0:
        size = p[0] & 0x1F
        p += 1
    elif p[0] == 0xDA or p[0] == 0xDB:
        width = 2 if p[0] == 0xDA else 4
        p += 1
        if width > end - p:
            return False
        size = big_endian(p, width)
        p += width
    else:
        return False
    if size > <size_t>(end - p):
        return False
    entry.data = p
    entry.data_end = p + size
    p = packed_number(text(p + size, end, b"\xaaExtensions\xc0\xa5Index", 18), end, &entry.index)
    p = packed_number(text(p, end, b"\xa4Term", 5), end, &entry.term)
    p = packed_number(text(p, end, b"\xa4Type", 5), end, &entry.type)
    return p != NULL and p == end


cdef inline const uint8_t* shortest_varint(const uint8_t* p, const uint8_t* end, uint64_t* value) noexcept nogil:
    cdef const uint8_t* begin = p
    p = any_varint(p, end, value)
    return p if p != NULL and p - begin == varint_size(value[0]) else NULL


cdef inline bint subject_of(const uint8_t* p, const uint8_t* end, Channel* channel) noexcept nogil:
    """Reads the channel of a message, after its sequence."""
    cdef uint64_t number
    if p == end or p[0] != 0x08:
        return False
    p = any_varint(p + 1, end, &number)
    if p == NULL or p == end or p[0] != 0x12:
        return False
    channel.field = p
    p = shortest_varint(p + 1, end, &channel.size)
    if p == NULL or channel.size == 0 or channel.size > <size_t>(end - p):
        return False
    channel.name = p
    channel.field_size = <uint64_t>(p - channel.field) + channel.size
    return True


cdef inline bint usual_publish(const Entry* entry, Published* run) noexcept nogil:
    """Reads an operation that holds messages of one channel whose sequences follow each other, as servers write it."""
    cdef const uint8_t* p = entry.data
    cdef const uint8_t* end = entry.data_end
    cdef const uint8_t* batch_end
    cdef uint64_t size
    cdef Message message
    if entry.type != 0 or p == end or p[0] != 0x12:
        return False
    p = shortest_varint(p + 1, end, &size)
    if p == NULL or size == 0 or size > <size_t>(end - p):
        return False
    batch_end = p + size
    run.channel_id = 0
    if batch_end != end and (
        batch_end[0] != 0x50 or shortest_varint(batch_end + 1, end, &run.channel_id) != end
    ):
        return False
    run.first = run.last = 0
    while p != batch_end:
        if p[0] != 0x0A:
            return False
        p = shortest_varint(p + 1, batch_end, &size)
        if p == NULL or size > <size_t>(batch_end - p):
            return False
        if run.first == 0 and not subject_of(p, p + size, &run.channel):
            return False
        if not usual_message(p, p + size, &run.channel, &message) or message.flags & FOREIGN_SUBJECT:
            return False
        if run.first == 0:
            run.first = message.sequence
        elif message.sequence != run.last + 1:
            return False
        run.last = message.sequence
        p += size
    return True
