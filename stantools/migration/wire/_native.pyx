# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Parsing what a server sends, compiled. What it does is documented in `stantools.migration.wire.plain`, its twin.

It releases the interpreter lock. A pointer moves only after the distance to its end was checked, and a size is used only
after it was compared with what is left.
"""

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memchr, memcmp

from stantools.migration.wire.columns import FrameStop

NAME = "native"

cdef enum:
    # Members of FrameStop.
    END = 0
    FULL = 1
    PARTIAL = 2
    OTHER = 3
    MALFORMED = 4

    LONGEST_LINE = 1 << 20
    MOST_WORDS = 6  # H/MSG, subject, sid, reply, header size, total size
    MOST_TOKENS = 12

MAX_LINE = LONGEST_LINE

cdef tuple STOPS = tuple(FrameStop)


cdef struct Word:
    uint32_t start
    uint32_t size


cdef struct Line:
    # A control line; a reply of size 0 is none.
    int64_t sid
    Word subject
    Word reply
    uint64_t header_size
    uint64_t size


cdef struct Numbers:
    # What an acknowledgement subject says.
    uint64_t sequence
    uint64_t delivery
    int64_t time
    uint64_t pending


cdef inline bint is_digit(uint8_t byte) noexcept nogil:
    return <uint8_t>(byte - 48) <= 9


cdef inline bint number(const uint8_t* p, size_t size, size_t most, uint64_t* value) noexcept nogil:
    """Reads a number of 1 to `most` (at most 20) digits that fits into 64 bits."""
    cdef uint64_t sum = 0, digit
    cdef size_t i
    if size == 0 or size > most:
        return False
    for i in range(size):
        digit = <uint64_t>p[i] - 48
        if digit > 9:
            return False
        if i == 19 and (sum > 1844674407370955161u or (sum == 1844674407370955161u and digit > 5)):
            return False
        sum = sum * 10 + digit
    value[0] = sum
    return True


cdef bint read_line(const uint8_t* p, size_t size, bint has_header, Line* line) noexcept nogil:
    """Reads a control line without its end; False if it is none."""
    cdef Word words[MOST_WORDS]
    cdef int count = 0, least = 4 + has_header
    cdef size_t i = 0, begin
    cdef uint64_t value = 0
    cdef Word word
    while True:
        begin = i
        while i < size and p[i] != 32 and p[i] != 9:
            i += 1
        if count == MOST_WORDS:
            return False
        words[count].start = <uint32_t>begin
        words[count].size = <uint32_t>(i - begin)
        count += 1
        while i < size and (p[i] == 32 or p[i] == 9):
            i += 1
        if i == size:
            break
    if count != least and count != least + 1:
        return False
    if not number(p + words[2].start, words[2].size, 18, &value):
        return False
    line.sid = <int64_t>value
    word = words[count - 1]
    if not number(p + word.start, word.size, 9, &line.size):
        return False
    line.header_size = 0
    if has_header:
        word = words[count - 2]
        if not number(p + word.start, word.size, 9, &line.header_size) or line.header_size > line.size:
            return False
    line.subject = words[1]
    if count > least:
        line.reply = words[3]
    else:
        line.reply.start = line.reply.size = 0
    return True


cdef void read_acknowledgement(const uint8_t* p, size_t size, Numbers* numbers) noexcept nogil:
    cdef uint32_t ends[MOST_TOKENS]
    cdef int count = 0, first
    cdef size_t i, begin, length
    cdef uint64_t time = 0
    cdef bint negative
    cdef Numbers read
    numbers.sequence = numbers.delivery = numbers.pending = 0
    numbers.time = 0
    if size < 8 or memcmp(p, b"$JS.ACK.", 8) != 0:
        return
    for i in range(size):
        if p[i] == 46:
            if count == MOST_TOKENS - 1:
                return
            ends[count] = <uint32_t>i
            count += 1
    ends[count] = <uint32_t>size
    count += 1
    if count == 9:
        first = 5
    elif count == 11 or count == 12:
        first = 7
    else:
        return
    begin = ends[first - 1] + 1
    if not number(p + begin, ends[first] - begin, 20, &read.sequence):
        return
    begin = ends[first] + 1
    if not number(p + begin, ends[first + 1] - begin, 20, &read.delivery):
        return
    begin = ends[first + 1] + 1
    length = ends[first + 2] - begin
    negative = length > 0 and p[begin] == 45
    if not number(p + begin + negative, length - negative, 19, &time) or time > <uint64_t>0x7FFFFFFFFFFFFFFF:
        return
    read.time = -<int64_t>time if negative else <int64_t>time
    begin = ends[first + 2] + 1
    if not number(p + begin, ends[first + 3] - begin, 20, &read.pending):
        return
    numbers[0] = read


cdef inline uint16_t status_of(const uint8_t* p, size_t size) noexcept nogil:
    if size < 13 or memcmp(p, b"NATS/1.0 ", 9) != 0 or not (p[12] == 32 or p[12] == 13):
        return 0
    if not (is_digit(p[9]) and is_digit(p[10]) and is_digit(p[11])):
        return 0
    return (p[9] - 48) * 100 + (p[10] - 48) * 10 + (p[11] - 48)


def parse_frames(const uint8_t[::1] buffer, int64_t start, int64_t limit, const int64_t[::1] sids, columns, int64_t row=0):
    """See the twin."""
    cdef int64_t[::1] sid = columns.sid
    cdef int64_t[::1] subject_start = columns.subject_start
    cdef uint32_t[::1] subject_size = columns.subject_size
    cdef int64_t[::1] reply_start = columns.reply_start
    cdef uint32_t[::1] reply_size = columns.reply_size
    cdef int64_t[::1] header_start = columns.header_start
    cdef uint32_t[::1] header_size = columns.header_size
    cdef int64_t[::1] data_start = columns.data_start
    cdef uint32_t[::1] data_size = columns.data_size
    cdef uint16_t[::1] status = columns.status
    cdef uint64_t[::1] sequence = columns.sequence
    cdef uint64_t[::1] consumer_sequence = columns.consumer_sequence
    cdef int64_t[::1] timestamp = columns.timestamp
    cdef uint64_t[::1] pending = columns.pending
    cdef int64_t capacity = sid.shape[0], known = sids.shape[0], k, at = start, need = 0
    cdef const uint8_t* base
    cdef const uint8_t* p
    cdef const uint8_t* found
    cdef size_t left, line_size, length
    cdef bint has_header
    cdef int stop = END
    cdef Line line
    cdef Numbers numbers
    if not 0 <= start <= limit <= buffer.shape[0] or not 0 <= row <= capacity:
        raise ValueError(f"start {start}, limit {limit} or row {row} lies outside")
    if at == limit:
        return row, at, STOPS[END], 0
    base = &buffer[0]
    with nogil:
        while at < limit:
            if row == capacity:
                stop = FULL
                break
            p = base + at
            left = <size_t>(limit - at)
            found = <const uint8_t*>memchr(p, 10, min(left, <size_t>LONGEST_LINE))
            if found == NULL:
                stop = PARTIAL if left < LONGEST_LINE else MALFORMED
                break
            line_size = <size_t>(found - p) + 1
            if line_size < 2 or p[line_size - 2] != 13:
                stop = MALFORMED
                break
            has_header = p[0] == 72
            if line_size < 6 or memcmp(p + has_header, b"MSG", 3) != 0 or not (
                p[3 + has_header] == 32 or p[3 + has_header] == 9
            ):
                stop = OTHER
                need = <int64_t>line_size
                break
            if not read_line(p, line_size - 2, has_header, &line):
                stop = MALFORMED
                break
            length = line_size + line.size + 2
            if length > left:
                stop = PARTIAL
                need = <int64_t>length
                break
            if p[length - 2] != 13 or p[length - 1] != 10:
                stop = MALFORMED
                break
            k = 0
            while k < known and sids[k] != line.sid:
                k += 1
            if k == known:
                stop = OTHER
                need = <int64_t>length
                break
            sid[row] = line.sid
            subject_start[row] = at + line.subject.start
            subject_size[row] = line.subject.size
            reply_start[row] = at + line.reply.start if line.reply.size else 0
            reply_size[row] = line.reply.size
            header_start[row] = at + <int64_t>line_size if line.header_size else 0
            header_size[row] = <uint32_t>line.header_size
            data_start[row] = at + <int64_t>(line_size + line.header_size)
            data_size[row] = <uint32_t>(line.size - line.header_size)
            status[row] = status_of(p + line_size, line.header_size)
            read_acknowledgement(p + line.reply.start, line.reply.size, &numbers)
            sequence[row] = numbers.sequence
            consumer_sequence[row] = numbers.delivery
            timestamp[row] = numbers.time
            pending[row] = numbers.pending
            row += 1
            at += <int64_t>length
    return row, at, STOPS[stop], need
