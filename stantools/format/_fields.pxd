"""Decoding of messages and subscription updates (for `kernels.pyx`).

The rules are those of `stantools.format.fieldscan`, as pointer arithmetic. Functions that read return the position after
the bytes read, or NULL where the server's decoder reports an error.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp

from stantools.format._bytes cimport load64, lowest_bit

cdef enum:
    # Bits of layout.Flag.
    FOREIGN_SUBJECT = 1
    HAS_REPLY = 2
    REDELIVERED = 4
    UNUSUAL = 8

cdef extern from *:
    """
    #define UNLIMITED INT64_MAX
    """
    const int64_t UNLIMITED

cdef struct Message:
    uint64_t sequence
    int64_t timestamp
    const uint8_t* subject
    const uint8_t* reply
    const uint8_t* data
    uint64_t subject_size
    uint64_t reply_size
    uint64_t data_size
    uint8_t flags

cdef struct Channel:
    const uint8_t* name
    uint64_t size
    # The subject field of a message of this channel: tag, size, name; something impossible for an empty name.
    const uint8_t* field
    uint64_t field_size


cdef inline uint64_t seven_of_eight(uint64_t bits) noexcept nogil:
    """Drops the high bit of each of eight bytes and closes the gaps."""
    bits &= <uint64_t>0x7F7F7F7F7F7F7F7F
    bits = (bits & <uint64_t>0x007F007F007F007F) | ((bits & <uint64_t>0x7F007F007F007F00) >> 1)
    bits = (bits & <uint64_t>0x00003FFF00003FFF) | ((bits & <uint64_t>0x3FFF00003FFF0000) >> 2)
    return (bits & <uint64_t>0x000000000FFFFFFF) | ((bits & <uint64_t>0x0FFFFFFF00000000) >> 4)


cdef inline const uint8_t* usual_varint(const uint8_t* p, const uint8_t* end, uint64_t* value) noexcept nogil:
    """A varint above zero in as few bytes as possible; NULL also for short ones close to the end of the payload."""
    cdef uint64_t bits, stops
    cdef int last
    if p == end:
        return NULL
    if p[0] < 0x80:
        value[0] = p[0]
        return p + 1 if p[0] else NULL
    if <size_t>(end - p) < 8:
        return NULL
    bits = load64(p)
    stops = ~bits & <uint64_t>0x8080808080808080
    if stops:
        last = lowest_bit(stops) - 7
        bits &= stops ^ (stops - 1)
        value[0] = seven_of_eight(bits)
        return p + (last >> 3) + 1 if bits >> last else NULL
    bits = seven_of_eight(bits)
    if <size_t>(end - p) < 9:
        return NULL
    if p[8] < 0x80:
        value[0] = bits | <uint64_t>p[8] << 56
        return p + 9 if p[8] else NULL
    if <size_t>(end - p) < 10 or p[9] != 1:
        return NULL
    value[0] = bits | <uint64_t>(p[8] & 0x7F) << 56 | <uint64_t>1 << 63
    return p + 10


cdef inline bint same_bytes(const uint8_t* a, const uint8_t* b, uint64_t size) noexcept nogil:
    """Compares short strings without a call."""
    if size > 32:
        return memcmp(a, b, size) == 0
    while size >= 8:
        if load64(a) != load64(b):
            return False
        a += 8
        b += 8
        size -= 8
    while size:
        if a[0] != b[0]:
            return False
        a += 1
        b += 1
        size -= 1
    return True


cdef inline bint usual_message(
    const uint8_t* p, const uint8_t* end, const Channel* channel, Message* message
) noexcept nogil:
    """Reads a message as the server writes it. False only means that the general decoder must decide."""
    cdef uint64_t size
    if p == end or p[0] != 0x08:
        return False
    p = usual_varint(p + 1, end, &message.sequence)
    if p == NULL or p == end or p[0] != 0x12:
        return False
    message.flags = 0
    if channel.field_size <= <size_t>(end - p) and same_bytes(p, channel.field, channel.field_size):
        p += channel.field_size
    else:
        message.flags = FOREIGN_SUBJECT
        p = usual_varint(p + 1, end, &size)
        if p == NULL or size > <size_t>(end - p):
            return False
        p += size
    message.reply_size = message.data_size = 0
    if p != end and p[0] == 0x1A:
        p = usual_varint(p + 1, end, &message.reply_size)
        if p == NULL or message.reply_size > <size_t>(end - p):
            return False
        message.flags |= HAS_REPLY
        message.reply = p
        p += message.reply_size
    if p != end and p[0] == 0x22:
        p = usual_varint(p + 1, end, &message.data_size)
        if p == NULL or message.data_size > <size_t>(end - p):
            return False
        message.data = p
        p += message.data_size
    if p == end or p[0] != 0x28:
        return False
    return usual_varint(p + 1, end, <uint64_t*>&message.timestamp) == end


cdef inline const uint8_t* any_varint(const uint8_t* p, const uint8_t* end, uint64_t* value) noexcept nogil:
    """Any varint; bits beyond 64 are lost."""
    cdef int shift = 0
    cdef uint8_t byte
    value[0] = 0
    while shift < 70 and p != end:
        byte = p[0]
        p += 1
        value[0] |= <uint64_t>(byte & 0x7F) << shift
        if byte < 0x80:
            return p
        shift += 7
    return NULL


cdef inline int varint_size(uint64_t value) noexcept nogil:
    cdef int size = 1
    while value > 0x7F:
        value >>= 7
        size += 1
    return size


cdef inline const uint8_t* any_tag(const uint8_t* p, const uint8_t* end, uint32_t* number, int* wire) noexcept nogil:
    """A top-level tag; the server keeps 32 bits of the field number, signed."""
    cdef uint64_t tag
    p = any_varint(p, end, &tag)
    if p == NULL:
        return NULL
    number[0] = <uint32_t>(tag >> 3)
    wire[0] = <int>(tag & 7)
    if wire[0] == 4 or number[0] == 0 or number[0] >> 31:
        return NULL
    return p


cdef inline const uint8_t* any_value(const uint8_t* p, const uint8_t* end, int wire, int64_t* fields) noexcept nogil:
    """Skips the value of an unknown field; a group down to its end. Each tag within a group counts as a field."""
    cdef uint64_t number
    cdef uint64_t depth = 0
    while True:
        if wire == 0:
            p = any_varint(p, end, &number)
            if p == NULL:
                return NULL
        elif wire == 3:
            depth += 1
        elif wire == 4:
            depth -= 1
        else:
            if wire == 1:
                number = 8
            elif wire == 5:
                number = 4
            elif wire == 2:
                p = any_varint(p, end, &number)
                if p == NULL:
                    return NULL
            else:
                return NULL
            if number > <size_t>(end - p):
                return NULL
            p += number
        if depth == 0:
            return p
        fields[0] -= 1
        if fields[0] < 0:
            return NULL
        p = any_varint(p, end, &number)
        if p == NULL:
            return NULL
        wire = <int>(number & 7)


cdef inline bint any_message(const uint8_t* p, const uint8_t* end, int64_t fields, Message* message) noexcept nogil:
    """Decodes a message that the server's decoder accepts, with at most this many fields; else False."""
    cdef uint64_t value
    cdef uint64_t redelivered = 0
    cdef uint32_t deliveries = 0
    cdef uint32_t crc = 0
    cdef uint32_t number, last = 0
    cdef int wire
    cdef const uint8_t* begin
    # "Usual": encoding the decoded values yields exactly these bytes.
    cdef bint usual = True
    message.sequence = 0
    message.timestamp = 0
    message.subject = message.reply = message.data = NULL
    message.subject_size = message.reply_size = message.data_size = 0
    while p != end:
        fields -= 1
        if fields < 0:
            return False
        begin = p
        p = any_tag(p, end, &number, &wire)
        if p == NULL:
            return False
        usual = usual and last < number and p == begin + 1
        last = number
        begin = p
        if number == 2 or number == 3 or number == 4:
            if wire != 2:
                return False
            p = any_varint(p, end, &value)
            if p == NULL or value > <size_t>(end - p):
                return False
            usual = usual and value > 0 and p - begin == varint_size(value)
            if number == 2:
                message.subject = p
                message.subject_size = value
            elif number == 3:
                message.reply = p
                message.reply_size = value
            else:
                message.data = p
                message.data_size = value
            p += value
        elif number == 1 or number == 5 or number == 6 or number == 7 or number == 10:
            if wire != 0:
                return False
            p = any_varint(p, end, &value)
            if p == NULL:
                return False
            # A tenth byte above 1 holds bits that are lost.
            usual = usual and value > 0 and p - begin == varint_size(value) and (p - begin < 10 or p[-1] == 1)
            if number == 1:
                message.sequence = value
            elif number == 5:
                message.timestamp = <int64_t>value
            elif number == 6:
                usual = usual and value == 1
                redelivered = value
            else:
                usual = usual and value >> 32 == 0
                if number == 7:
                    deliveries = <uint32_t>value
                else:
                    crc = <uint32_t>value
        else:
            usual = False
            p = any_value(p, end, wire, &fields)
            if p == NULL:
                return False
    message.flags = 0 if usual else UNUSUAL
    if redelivered or deliveries or crc:
        message.flags |= REDELIVERED
    if message.reply_size:
        message.flags |= HAS_REPLY
    return True


cdef inline bint any_update(
    const uint8_t* p, const uint8_t* end, bint with_sequence, uint64_t* identity, uint64_t* sequence
) noexcept nogil:
    """Decodes a SubStateUpdate, or a SubStateDelete, which has no sequence."""
    cdef uint32_t number
    cdef int wire
    cdef int64_t fields = UNLIMITED
    identity[0] = sequence[0] = 0
    while p != end:
        p = any_tag(p, end, &number, &wire)
        if p == NULL:
            return False
        if number == 1 or (number == 2 and with_sequence):
            if wire != 0:
                return False
            p = any_varint(p, end, identity if number == 1 else sequence)
        else:
            p = any_value(p, end, wire, &fields)
        if p == NULL:
            return False
    return True


cdef inline bint any_fields(const uint8_t* p, const uint8_t* end, int64_t fields) noexcept nogil:
    """Whether the bytes consist of protobuf fields, at most this many."""
    cdef uint32_t number
    cdef int wire
    while p != end:
        fields -= 1
        if fields < 0:
            return False
        p = any_tag(p, end, &number, &wire)
        if p == NULL:
            return False
        p = any_value(p, end, wire, &fields)
        if p == NULL:
            return False
    return True
