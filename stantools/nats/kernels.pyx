# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Bulk operations on frames, compiled. `kernels.pyi` has the contract of each function.

A pointer moves only after the distance to its end was checked, and a size is used only after it was compared with the
bytes left. Arguments are taken as plain buffers (one acquisition each): calls for a single frame are as frequent as long
ones.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.list cimport PyList_GET_SIZE
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memchr, memcmp, memcpy

from stantools.nats._names cimport Entry, HashTable, close_gap, entry_of, number_of
from stantools.format._bytes cimport load64

import os

from stantools.nats.frames import ParseStop


cdef enum:
    # Members of ParseStop.
    END = 0
    FULL = 1
    PARTIAL = 2
    OTHER = 3
    MALFORMED = 4
    LINE_TOO_LONG = 5
    PAYLOAD_TOO_LARGE = 6

    # Columns of a frame table.
    SUBJECT = 0
    SUBJECT_SIZE = 1
    REPLY = 2
    REPLY_SIZE = 3
    HEADER_SIZE = 4
    PAYLOAD = 5
    PAYLOAD_SIZE = 6
    ROUTE = 7
    WIDTH = 8

    LONGEST_LINE = 1 << 30
    SMALL = 64 * 1024
    MOST_WORDS = 5  # subject, sid, reply, size of headers, size of all
    MOST = 0x7FFFFFFF
    MOST_TOKENS = 12  # of an acknowledgement subject

    FEWEST_ENTRIES = 8

cdef tuple STOPS = tuple(ParseStop)


cdef struct Word:
    Py_ssize_t start
    Py_ssize_t size


cdef struct Line:
    # A control line; positions count from its start. A reply of size 0 means none.
    Py_ssize_t size  # with its end
    Py_ssize_t numbers  # where the sizes begin
    Word subject
    Word sid
    Word reply
    Py_ssize_t header_size
    Py_ssize_t total


cdef class Names:
    """The dictionary keeps the names of the table alive."""

    def __cinit__(self):
        cdef bytes key = os.urandom(16)
        self.numbers = {}
        self.table.key[0] = load64(<const uint8_t*>PyBytes_AS_STRING(key))
        self.table.key[1] = load64(<const uint8_t*>PyBytes_AS_STRING(key) + 8)
        self.resize(FEWEST_ENTRIES)

    def __dealloc__(self):
        free(self.table.entries)
        free(self.heads)

    def __len__(self):
        return len(self.numbers)

    def add(self, name, number):
        cdef bytes text = bytes(name)
        cdef Entry* entry
        if not 0 <= number <= INT32_MAX:
            raise ValueError(f"{number} is no number for a name")
        if 2 * len(self.numbers) > <Py_ssize_t>self.table.mask:
            self.resize(4 * (self.table.mask + 1))
        entry = entry_of(&self.table, <const uint8_t*>PyBytes_AS_STRING(text), <uint32_t>PyBytes_GET_SIZE(text))
        # A known name keeps its object, in the dictionary as in the table.
        self.numbers[text] = number
        if entry.name == NULL:
            entry.name = <const uint8_t*>PyBytes_AS_STRING(text)
            entry.size = <uint32_t>PyBytes_GET_SIZE(text)
        entry.number = number

    def discard(self, name):
        cdef bytes text = bytes(name)
        cdef Entry* entry
        if text not in self.numbers:
            return
        entry = entry_of(&self.table, <const uint8_t*>PyBytes_AS_STRING(text), <uint32_t>PyBytes_GET_SIZE(text))
        close_gap(&self.table, entry - self.table.entries)
        del self.numbers[text]

    def clear(self):
        cdef Entry* old = self.table.entries
        self.table.entries = NULL
        try:
            self.resize(FEWEST_ENTRIES)
        except MemoryError:
            self.table.entries = old
            raise
        free(old)
        self.numbers.clear()
        self.head_count = 0

    def begin_with(self, heads):
        cdef tuple kept = tuple([(bytes(head), number) for head, number in heads.items()])
        cdef Head* places
        cdef bytes head
        cdef Py_ssize_t i = 0
        for _, number in kept:
            if not 0 <= number <= INT32_MAX:
                raise ValueError(f"{number} is no number for names")
        places = <Head*>malloc((len(kept) + 1) * sizeof(Head))
        if places == NULL:
            raise MemoryError
        for head, number in kept:
            places[i].name = <const uint8_t*>PyBytes_AS_STRING(head)
            places[i].size = PyBytes_GET_SIZE(head)
            places[i].number = number
            i += 1
        free(self.heads)
        self.kept, self.heads, self.head_count, self.last_head = kept, places, i, 0

    def get(self, name):
        cdef bytes text = bytes(name)
        return found_in(self, <const uint8_t*>PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text))

    cdef int resize(self, size_t size) except -1:
        cdef Entry* old = self.table.entries
        cdef Entry* entry
        cdef size_t i, olds = self.table.mask + 1 if old else 0
        cdef Entry* entries = <Entry*>calloc(size, sizeof(Entry))
        if entries == NULL:
            raise MemoryError
        self.table.entries = entries
        self.table.mask = size - 1
        for i in range(olds):
            if old[i].name:
                entry = entry_of(&self.table, old[i].name, old[i].size)
                entry[0] = old[i]
        free(old)
        return 0


cdef inline bint is_below(const Head* head, const uint8_t* name, Py_ssize_t size) noexcept nogil:
    """Returns whether a name is the head, followed by tokens."""
    cdef Py_ssize_t i
    cdef uint8_t before = 46
    if size <= head.size or memcmp(name, head.name, <size_t>head.size) != 0:
        return False
    for i in range(head.size, size):
        if name[i] <= 32 or (name[i] == 46 and before == 46):
            return False
        before = name[i]
    return before != 46


cdef inline int32_t found_in(Names table, const uint8_t* name, Py_ssize_t size) noexcept:
    """The number of a name or of its head, -1 for none."""
    cdef Py_ssize_t i
    cdef int32_t found
    if not table.head_count:
        return number_of(&table.table, name, <uint32_t>size)
    if is_below(&table.heads[table.last_head], name, size):
        return table.heads[table.last_head].number
    found = number_of(&table.table, name, <uint32_t>size)
    if found < 0:
        for i in range(table.head_count):
            if is_below(&table.heads[i], name, size):
                table.last_head = i
                return table.heads[i].number
    return found


cdef inline bint blank(uint8_t byte) noexcept nogil:
    return byte == 32 or byte == 9


cdef inline Py_ssize_t number(const uint8_t* p, Py_ssize_t size) noexcept nogil:
    """Returns a number of 1 to 9 digits, -1 if invalid."""
    cdef Py_ssize_t value = 0, i
    cdef uint8_t digit
    if size < 1 or size > 9:
        return -1
    for i in range(size):
        digit = <uint8_t>(p[i] - 48)
        if digit > 9:
            return -1
        value = value * 10 + digit
    return value


cdef int read_line(
    const uint8_t* p, Py_ssize_t left, const uint8_t* name, bint publish, Py_ssize_t limit, Line* line
) noexcept nogil:
    """Reads a control line of this operation or, with a leading H, its form with headers. END if it is valid."""
    cdef Word words[MOST_WORDS]
    cdef Py_ssize_t i = 0, begin, last, rest, header_size, total
    cdef const uint8_t* found
    cdef int count = 0, least, k
    cdef bint headed = p[0] == 72 or p[0] == 104
    cdef bint complete
    if headed:
        i = 1
    for k in range(3):
        if i == left:
            return PARTIAL
        if (p[i] & 0xDF) != name[k]:
            return OTHER
        i += 1
    if i == left:
        return PARTIAL
    if not blank(p[i]):
        return OTHER
    begin = i
    while i < left and blank(p[i]):
        i += 1
        if i - begin > limit:
            return LINE_TOO_LONG
    rest = min(left - i, limit + 2)
    found = <const uint8_t*>memchr(p + i, 10, <size_t>rest) if rest else NULL
    complete = found != NULL
    last = found - p if complete else i + rest
    line.size = last + 1
    if last > i and p[last - 1] == 13:
        last -= 1
    if last - i > limit:
        return LINE_TOO_LONG
    if not complete:
        return PARTIAL
    least = 1 + headed + (1 if publish else 2)
    while i < last:
        begin = i
        while i < last and not blank(p[i]):
            if p[i] == 13:
                return MALFORMED
            i += 1
        if count == least + 1:
            return MALFORMED
        words[count].start = begin
        words[count].size = i - begin
        count += 1
        while i < last and blank(p[i]):
            i += 1
    if count != least and count != least + 1:
        return MALFORMED
    total = number(p + words[count - 1].start, words[count - 1].size)
    if total < 0:
        return MALFORMED
    header_size = 0
    line.numbers = words[count - 1].start
    if headed:
        line.numbers = words[count - 2].start
        header_size = number(p + line.numbers, words[count - 2].size)
        if header_size < 0 or header_size > total:
            return MALFORMED
    line.header_size = header_size
    line.total = total
    line.subject = words[0]
    line.sid.start = line.sid.size = line.reply.start = line.reply.size = 0
    if not publish:
        line.sid = words[1]
    if count > least:
        line.reply = words[1 if publish else 2]
    return END


cdef inline bint read_same(const uint8_t* p, Py_ssize_t left, bint headed, Py_ssize_t most, Line* line) noexcept nogil:
    """Reads the end of a line that begins like the one before: sizes and CR LF. False if it differs."""
    cdef Py_ssize_t i = line.numbers, value = 0, header_size = 0
    cdef uint8_t digit
    cdef int digits = 0
    if left > most:
        left = most
    while True:
        digits = 0
        value = 0
        while i < left and digits < 10:
            digit = <uint8_t>(p[i] - 48)
            if digit > 9:
                break
            value = value * 10 + digit
            digits += 1
            i += 1
        if digits == 0 or digits > 9:
            return False
        if not headed:
            break
        if i >= left or p[i] != 32:
            return False
        headed = False
        header_size = value
        i += 1
    if left - i < 2 or p[i] != 13 or p[i + 1] != 10 or header_size > value:
        return False
    line.size = i + 2
    line.header_size = header_size
    line.total = value
    return True


cdef tuple parse(
    buffer,
    Py_ssize_t begin,
    Py_ssize_t end,
    frames,
    Names table,
    Py_ssize_t limit,
    Py_ssize_t max_payload,
    bint publish,
):
    cdef Py_buffer source
    cdef Py_buffer target
    cdef const uint8_t* base
    cdef const uint8_t* p
    cdef const uint8_t* before = NULL  # the line before
    cdef const uint8_t* name = <const uint8_t*>(b"PUB" if publish else b"MSG")
    cdef int32_t* row
    cdef Py_ssize_t at = begin, left, length, need = 0, rows = 0, capacity, first = 0
    cdef int32_t route = -1, last_route = -1
    cdef Py_ssize_t sid
    cdef bint headed, same
    cdef int stop = END
    cdef Line line
    cdef Word subject
    cdef list spans = []
    if limit < 0:
        limit = 0
    elif limit > LONGEST_LINE:
        limit = LONGEST_LINE
    line.numbers = 0
    line.subject.size = 0
    PyObject_GetBuffer(buffer, &source, PyBUF_SIMPLE)
    try:
        PyObject_GetBuffer(frames, &target, PyBUF_WRITABLE)
        try:
            if not 0 <= begin <= end <= min(source.len, <Py_ssize_t>MOST):
                raise ValueError(f"begin {begin} or end {end} lies outside")
            if target.itemsize != sizeof(int32_t):
                raise ValueError("the table is none of int32")
            base = <const uint8_t*>source.buf
            row = <int32_t*>target.buf
            capacity = target.len // <Py_ssize_t>(WIDTH * sizeof(int32_t))
            while at < end:
                if rows == capacity:
                    stop = FULL
                    break
                p = base + at
                left = end - at
                # Most lines differ from the one before in their sizes only.
                same = (
                    before != NULL
                    and left > line.numbers
                    and memcmp(p, before, <size_t>line.numbers) == 0
                    and read_same(p, left, p[0] == 72 or p[0] == 104, limit, &line)
                )
                if not same:
                    subject = line.subject
                    stop = read_line(p, left, name, publish, limit, &line)
                    if stop != END:
                        break
                if 0 <= max_payload < line.total:
                    stop = PAYLOAD_TOO_LARGE
                    break
                length = line.size + line.total + 2
                if length > left:
                    stop = PARTIAL
                    need = length
                    break
                if p[length - 2] != 13 or p[length - 1] != 10:
                    stop = MALFORMED
                    break
                if not same:
                    same = (
                        before != NULL
                        and subject.size == line.subject.size
                        and memcmp(before + subject.start, p + line.subject.start, <size_t>subject.size) == 0
                    )
                    if not publish:
                        route = <int32_t>number(p + line.sid.start, line.sid.size)
                    elif not same:
                        route = found_in(table, p + line.subject.start, line.subject.size)
                    if rows == 0:
                        last_route = route
                    elif route != last_route or (route < 0 and not same):
                        spans.append((last_route, first, rows))
                        first = rows
                        last_route = route
                before = p
                row[SUBJECT] = <int32_t>(at + line.subject.start)
                row[SUBJECT_SIZE] = <int32_t>line.subject.size
                row[REPLY] = <int32_t>(at + line.reply.start) if line.reply.size else 0
                row[REPLY_SIZE] = <int32_t>line.reply.size
                row[HEADER_SIZE] = <int32_t>line.header_size
                row[PAYLOAD] = <int32_t>(at + line.size)
                row[PAYLOAD_SIZE] = <int32_t>line.total
                row[ROUTE] = route
                row += WIDTH
                rows += 1
                at += length
            if rows:
                spans.append((last_route, first, rows))
        finally:
            PyBuffer_Release(&target)
    finally:
        PyBuffer_Release(&source)
    return rows, at, STOPS[stop], spans, need


def parse_publishes(
    buffer,
    Py_ssize_t begin,
    Py_ssize_t end,
    frames,
    Names table not None,
    Py_ssize_t max_control_line,
    Py_ssize_t max_payload,
):
    return parse(buffer, begin, end, frames, table, max_control_line, max_payload, True)


def parse_gathered(
    buffer,
    list ends not None,
    Py_ssize_t first,
    frames,
    Names table not None,
    ranks,
    Py_ssize_t max_control_line,
    Py_ssize_t max_payload,
):
    cdef Py_buffer source
    cdef Py_buffer target
    cdef Py_buffer order
    cdef list taken = []
    cdef list shares = []
    if not 0 <= first <= len(ends):
        raise IndexError(f"there is no piece {first}")
    PyObject_GetBuffer(buffer, &source, PyBUF_SIMPLE)
    try:
        PyObject_GetBuffer(frames, &target, PyBUF_WRITABLE)
        try:
            if target.itemsize != sizeof(int32_t):
                raise ValueError("the table is none of int32")
            PyObject_GetBuffer(ranks, &order, PyBUF_SIMPLE)
            try:
                gather(&source, ends, first, &target, table, &order, max_control_line, max_payload, taken, shares)
            finally:
                PyBuffer_Release(&order)
        finally:
            PyBuffer_Release(&target)
    finally:
        PyBuffer_Release(&source)
    return shares, taken


cdef int gather(
    const Py_buffer* source,
    list ends,
    Py_ssize_t piece,
    const Py_buffer* target,
    Names table,
    const Py_buffer* order,
    Py_ssize_t limit,
    Py_ssize_t max_payload,
    list taken,
    list shares,
) except -1:
    cdef const uint8_t* base = <const uint8_t*>source.buf
    cdef const uint8_t* ranks = <const uint8_t*>order.buf
    cdef const uint8_t* p
    cdef int32_t* frames = <int32_t*>target.buf
    cdef int32_t* row
    cdef Py_ssize_t capacity = target.len // <Py_ssize_t>(WIDTH * sizeof(int32_t))
    cdef Py_ssize_t at = ends[piece - 1] if piece else 0, end, left, length, rows = 0, first, size
    cdef int32_t route
    cdef bint whole
    cdef Line line
    limit = min(max(limit, 0), <Py_ssize_t>LONGEST_LINE)
    while piece < len(ends):
        end = ends[piece]
        piece += 1
        if not 0 <= at <= end <= min(source.len, <Py_ssize_t>MOST):
            raise ValueError(f"end {end} lies outside")
        first, size, whole = rows, 0, True
        while at < end:
            p = base + at
            left = end - at
            whole = (
                rows < capacity
                and read_line(p, left, <const uint8_t*>b"PUB", True, limit, &line) == END
                and line.header_size == 0
                and not 0 <= max_payload < line.total
            )
            if not whole:
                break
            length = line.size + line.total + 2
            whole = length <= left and p[length - 2] == 13 and p[length - 1] == 10
            if not whole:
                break
            route = found_in(table, p + line.subject.start, line.subject.size)
            whole = 0 < route < order.len and ranks[route] != 0
            if not whole:
                break
            row = frames + WIDTH * rows
            row[SUBJECT] = <int32_t>(at + line.subject.start)
            row[SUBJECT_SIZE] = <int32_t>line.subject.size
            row[REPLY] = <int32_t>(at + line.reply.start) if line.reply.size else 0
            row[REPLY_SIZE] = <int32_t>line.reply.size
            row[HEADER_SIZE] = 0
            row[PAYLOAD] = <int32_t>(at + line.size)
            row[PAYLOAD_SIZE] = <int32_t>line.total
            row[ROUTE] = route
            rows += 1
            size += line.total
            at += length
        if not whole:
            rows = first
            break
        taken.append((rows - first, size))
    sort_by_rank(frames, rows, ranks)
    first = size = 0
    for at in range(rows):
        row = frames + WIDTH * at
        size += row[PAYLOAD_SIZE]
        if at + 1 == rows or row[WIDTH + ROUTE] != row[ROUTE]:
            shares.append((row[ROUTE], first, at + 1, size))
            first, size = at + 1, 0
    return 0


cdef int sort_by_rank(int32_t* frames, Py_ssize_t rows, const uint8_t* ranks) except -1:
    """Sorts rows by the ranks of their routes, without changing the order within one."""
    cdef Py_ssize_t place[256]
    cdef Py_ssize_t i, begin = 0, count
    cdef int32_t* copy
    cdef int32_t* row
    for i in range(256):
        place[i] = 0
    for i in range(rows):
        place[ranks[frames[WIDTH * i + ROUTE]]] += 1
    if rows == 0 or place[ranks[frames[ROUTE]]] == rows:
        return 0
    for i in range(256):
        count = place[i]
        place[i] = begin
        begin += count
    copy = <int32_t*>malloc(<size_t>rows * WIDTH * sizeof(int32_t))
    if copy == NULL:
        raise MemoryError
    memcpy(copy, frames, <size_t>rows * WIDTH * sizeof(int32_t))
    for i in range(rows):
        row = copy + WIDTH * i
        memcpy(frames + WIDTH * place[ranks[row[ROUTE]]], row, WIDTH * sizeof(int32_t))
        place[ranks[row[ROUTE]]] += 1
    free(copy)
    return 0


def parse_messages(
    buffer, Py_ssize_t begin, Py_ssize_t end, frames, Py_ssize_t max_control_line, Py_ssize_t max_payload
):
    return parse(buffer, begin, end, frames, None, max_control_line, max_payload, False)


cdef struct Numbers:
    # The content of an acknowledgement subject.
    uint64_t sequence
    uint64_t delivery
    int64_t time
    uint64_t pending


cdef inline bint is_digit(uint8_t byte) noexcept nogil:
    return <uint8_t>(byte - 48) <= 9


cdef inline bint read_u64(const uint8_t* p, size_t size, size_t most, uint64_t* value) noexcept nogil:
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
    if not read_u64(p + begin, ends[first] - begin, 20, &read.sequence):
        return
    begin = ends[first] + 1
    if not read_u64(p + begin, ends[first + 1] - begin, 20, &read.delivery):
        return
    begin = ends[first + 1] + 1
    length = ends[first + 2] - begin
    negative = length > 0 and p[begin] == 45
    if not read_u64(p + begin + negative, length - negative, 19, &time) or time > <uint64_t>0x7FFFFFFFFFFFFFFF:
        return
    read.time = -<int64_t>time if negative else <int64_t>time
    begin = ends[first + 2] + 1
    if not read_u64(p + begin, ends[first + 3] - begin, 20, &read.pending):
        return
    numbers[0] = read


cdef inline uint16_t status_of(const uint8_t* p, size_t size) noexcept nogil:
    if size < 13 or memcmp(p, b"NATS/1.0 ", 9) != 0 or not (p[12] == 32 or p[12] == 13):
        return 0
    if not (is_digit(p[9]) and is_digit(p[10]) and is_digit(p[11])):
        return 0
    return (p[9] - 48) * 100 + (p[10] - 48) * 10 + (p[11] - 48)


def read_deliveries(
    const uint8_t[::1] buffer, const int32_t[:, ::1] frames, Py_ssize_t begin, Py_ssize_t end, columns,
    Py_ssize_t row=0, Py_ssize_t shift=0
):
    cdef int64_t[::1] sids = columns.sid
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
    cdef const int32_t* frame
    cdef const uint8_t* base
    cdef Py_ssize_t most = buffer.shape[0], i
    cdef int64_t start, length, reply, answer, header, body, size
    cdef Numbers numbers
    if frames.shape[1] != WIDTH or not (
        0 <= begin <= end <= frames.shape[0] and 0 <= row <= sids.shape[0] - (end - begin)
    ):
        raise ValueError(f"rows {begin} to {end}, or {row}, lie outside")
    if begin == end:
        return
    base = &buffer[0] if most else NULL
    for i in range(begin, end):
        frame = &frames[i, 0]
        start, length, reply, answer = frame[SUBJECT] + shift, frame[SUBJECT_SIZE], frame[REPLY], frame[REPLY_SIZE]
        header, body, size = frame[HEADER_SIZE], frame[PAYLOAD] + shift, frame[PAYLOAD_SIZE]
        if answer:
            reply += shift
        if (
            start < 0 or length < 0 or reply < 0 or answer < 0 or body < 0 or not 0 <= header <= size
            or start + length > most or reply + answer > most or body + size > most
        ):
            raise ValueError(f"{size} bytes at {body}, or what belongs to them, lie outside")
        sids[row] = frame[ROUTE]
        subject_start[row] = start
        subject_size[row] = <uint32_t>length
        reply_start[row] = reply
        reply_size[row] = <uint32_t>answer
        header_start[row] = body if header else 0
        header_size[row] = <uint32_t>header
        data_start[row] = body + header
        data_size[row] = <uint32_t>(size - header)
        status[row] = status_of(base + body, <size_t>header)
        read_acknowledgement(base + reply, <size_t>answer, &numbers)
        sequence[row] = numbers.sequence
        consumer_sequence[row] = numbers.delivery
        timestamp[row] = numbers.time
        pending[row] = numbers.pending
        row += 1


cdef inline int digits_of(uint64_t value) noexcept nogil:
    cdef int count = 1
    while value >= 10:
        value //= 10
        count += 1
    return count


cdef inline uint8_t* put(uint8_t* to, const void* source, Py_ssize_t size) noexcept nogil:
    memcpy(to, source, <size_t>size)
    return to + size


cdef inline uint8_t* put_number(uint8_t* to, uint64_t value) noexcept nogil:
    cdef int count = digits_of(value), i
    for i in range(count - 1, -1, -1):
        to[i] = <uint8_t>(48 + value % 10)
        value //= 10
    return to + count


cdef inline uint8_t* put_end(uint8_t* to) noexcept nogil:
    to[0] = 13
    to[1] = 10
    return to + 2


cdef inline int check(int64_t start, int64_t size, int64_t most) except -1:
    if not (0 <= start <= most and 0 <= size <= most - start):
        raise ValueError(f"{size} bytes at {start} lie outside")
    return 0


def encode_messages(
    buffer, frames, Py_ssize_t begin, Py_ssize_t end, bytes sid not None, bint headers, bytes subject=None
):
    cdef Py_buffer source
    cdef Py_buffer table
    cdef const uint8_t* base
    cdef const int32_t* rows
    cdef const int32_t* row
    cdef const uint8_t* name = NULL
    cdef const uint8_t* receiver = <const uint8_t*>PyBytes_AS_STRING(sid)
    cdef uint8_t* to
    cdef Py_ssize_t i, total = 0, name_size = 0, receiver_size = PyBytes_GET_SIZE(sid)
    cdef int32_t header_size, size, body
    cdef bint headed
    cdef bytes result
    if subject is not None:
        name = <const uint8_t*>PyBytes_AS_STRING(subject)
        name_size = PyBytes_GET_SIZE(subject)
    PyObject_GetBuffer(buffer, &source, PyBUF_SIMPLE)
    try:
        PyObject_GetBuffer(frames, &table, PyBUF_SIMPLE)
        try:
            if table.itemsize != sizeof(int32_t):
                raise ValueError("the table is none of int32")
            if not 0 <= begin <= end <= table.len // <Py_ssize_t>(WIDTH * sizeof(int32_t)):
                raise ValueError(f"rows {begin} to {end} lie outside")
            base = <const uint8_t*>source.buf
            rows = <const int32_t*>table.buf
            for i in range(begin, end):
                row = rows + i * WIDTH
                size = row[PAYLOAD_SIZE]
                header_size = row[HEADER_SIZE]
                check(row[SUBJECT], row[SUBJECT_SIZE], source.len)
                check(row[REPLY], row[REPLY_SIZE], source.len)
                check(row[PAYLOAD], size, source.len)
                check(0, header_size, size)
                total += 4 + receiver_size + 1 + 2 + 2
                total += (row[SUBJECT_SIZE] if name == NULL else name_size) + 1
                if row[REPLY_SIZE]:
                    total += row[REPLY_SIZE] + 1
                if header_size and headers:
                    total += 1 + digits_of(<uint64_t>header_size) + 1
                else:
                    size -= header_size
                total += digits_of(<uint64_t>size) + size
            result = PyBytes_FromStringAndSize(NULL, total)
            to = <uint8_t*>PyBytes_AS_STRING(result)
            for i in range(begin, end):
                row = rows + i * WIDTH
                size = row[PAYLOAD_SIZE]
                header_size = row[HEADER_SIZE]
                body = row[PAYLOAD]
                headed = header_size != 0 and headers
                if headed:
                    to[0] = 72
                    to += 1
                to = put(to, b"MSG ", 4)
                if name == NULL:
                    to = put(to, base + row[SUBJECT], row[SUBJECT_SIZE])
                else:
                    to = put(to, name, name_size)
                to[0] = 32
                to = put(to + 1, receiver, receiver_size)
                to[0] = 32
                to += 1
                if row[REPLY_SIZE]:
                    to = put(to, base + row[REPLY], row[REPLY_SIZE])
                    to[0] = 32
                    to += 1
                if headed:
                    to = put_number(to, <uint64_t>header_size)
                    to[0] = 32
                    to += 1
                else:
                    size -= header_size
                    body += header_size
                to = put_end(put_number(to, <uint64_t>size))
                to = put_end(put(to, base + body, size))
        finally:
            PyBuffer_Release(&table)
    finally:
        PyBuffer_Release(&source)
    return result


def encode_message(
    bytes subject not None, bytes sid not None, bytes payload not None, bytes reply not None=b"",
    Py_ssize_t header_size=0
):
    return one_message(subject, sid, payload, reply, header_size)


cdef bytes one_message(bytes subject, bytes sid, bytes payload, bytes reply, Py_ssize_t header_size):
    cdef Py_ssize_t name = PyBytes_GET_SIZE(subject), receiver = PyBytes_GET_SIZE(sid), size = PyBytes_GET_SIZE(payload)
    cdef Py_ssize_t answer = PyBytes_GET_SIZE(reply)
    cdef Py_ssize_t total = 10 + name + receiver + digits_of(<uint64_t>size) + size
    cdef bytes result
    cdef uint8_t* to
    if not 0 <= header_size <= size:
        raise ValueError(f"headers of {header_size} bytes in {size}")
    if answer:
        total += answer + 1
    if header_size:
        total += 2 + digits_of(<uint64_t>header_size)
    result = PyBytes_FromStringAndSize(NULL, total)
    to = <uint8_t*>PyBytes_AS_STRING(result)
    if header_size:
        to[0] = 72
        to += 1
    to = put(to, b"MSG ", 4)
    to = put(to, PyBytes_AS_STRING(subject), name)
    to[0] = 32
    to = put(to + 1, PyBytes_AS_STRING(sid), receiver)
    to[0] = 32
    to += 1
    if answer:
        to = put(to, PyBytes_AS_STRING(reply), answer)
        to[0] = 32
        to += 1
    if header_size:
        to = put_number(to, <uint64_t>header_size)
        to[0] = 32
        to += 1
    to = put_end(put_number(to, <uint64_t>size))
    put_end(put(to, PyBytes_AS_STRING(payload), size))
    return result


def hand_out(messages, Py_ssize_t at, dict known not None, bint patient):
    cdef Py_ssize_t count = len(messages), size, pending, out = 0, total = 0
    cdef list fresh = [], waiting
    cdef bytes subject, payload, sid, frame
    while at < count:
        subject, payload = messages[at]
        route = known.get(subject)
        to = None if route is None else route.only
        if to is None or to.handler is not None or to.limit or to.closed:
            break
        client = to.client
        size = PyBytes_GET_SIZE(payload)
        if not client.direct or size > SMALL:
            break
        waiting = client.out
        if PyList_GET_SIZE(waiting):
            pending = client.out_size
            if pending > SMALL or (patient and client.congested):
                break
        else:
            pending = 0
            fresh.append(client)
        sid = to.sid
        frame = one_message(subject, sid, payload, b"", 0)
        waiting.append(frame)
        client.out_size = pending + PyBytes_GET_SIZE(frame)
        to.delivered += 1
        counters = client.counters
        counters.out_msgs += 1
        counters.out_bytes += size
        out += 1
        total += size
        at += 1
    return at, out, total, fresh


def subject_runs(buffer, const int32_t[:, ::1] frames, Py_ssize_t begin, Py_ssize_t end):
    cdef const uint8_t[::1] source = buffer
    cdef const uint8_t* base = &source[0] if source.shape[0] else NULL
    cdef const int32_t* row
    cdef const int32_t* before = NULL
    cdef Py_ssize_t i
    cdef list found = []
    if frames.shape[1] != WIDTH or not 0 <= begin <= end <= frames.shape[0]:
        raise ValueError(f"rows {begin} to {end} lie outside")
    for i in range(begin, end):
        row = &frames[i, 0]
        check(row[SUBJECT], row[SUBJECT_SIZE], source.shape[0])
        if (
            before == NULL
            or row[SUBJECT_SIZE] != before[SUBJECT_SIZE]
            or memcmp(base + row[SUBJECT], base + before[SUBJECT], <size_t>row[SUBJECT_SIZE]) != 0
        ):
            found.append(i)
        before = row
    return found


def encode_numbers(
    buffer, const int32_t[:, ::1] frames, Py_ssize_t begin, Py_ssize_t end, bytes head not None, int64_t first,
    bytes tail not None, int32_t[:, ::1] answers
):
    cdef const uint8_t[::1] source = buffer
    cdef const uint8_t* base = &source[0] if source.shape[0] else NULL
    cdef const int32_t* row
    cdef int32_t* answer
    cdef Py_ssize_t i, rows = 0, total = 0, text, ends = PyBytes_GET_SIZE(head) + PyBytes_GET_SIZE(tail)
    cdef uint8_t* start
    cdef uint8_t* to
    cdef bytes result
    if frames.shape[1] != WIDTH or answers.shape[1] != WIDTH or not (
        0 <= begin <= end <= frames.shape[0] and end - begin <= answers.shape[0] and first >= 0
    ):
        raise ValueError(f"rows {begin} to {end} lie outside")
    for i in range(begin, end):
        row = &frames[i, 0]
        check(row[REPLY], row[REPLY_SIZE], source.shape[0])
        if row[REPLY_SIZE]:
            total += row[REPLY_SIZE] + ends + digits_of(<uint64_t>(first + i - begin))
    if total > MOST:
        raise ValueError(f"{total} bytes of answers")
    result = PyBytes_FromStringAndSize(NULL, total)
    start = to = <uint8_t*>PyBytes_AS_STRING(result)
    for i in range(begin, end):
        row = &frames[i, 0]
        if not row[REPLY_SIZE]:
            continue
        answer = &answers[rows, 0]
        rows += 1
        answer[SUBJECT] = <int32_t>(to - start)
        answer[SUBJECT_SIZE] = row[REPLY_SIZE]
        answer[REPLY] = answer[REPLY_SIZE] = answer[HEADER_SIZE] = 0
        to = put(to, base + row[REPLY], row[REPLY_SIZE])
        answer[PAYLOAD] = <int32_t>(to - start)
        to = put(to, PyBytes_AS_STRING(head), PyBytes_GET_SIZE(head))
        to = put_number(to, <uint64_t>(first + i - begin))
        to = put(to, PyBytes_AS_STRING(tail), PyBytes_GET_SIZE(tail))
        answer[PAYLOAD_SIZE] = <int32_t>(to - start) - answer[PAYLOAD]
        answer[ROUTE] = -1
    return result, rows


cdef inline int signed_digits(int64_t value) noexcept nogil:
    return 1 + digits_of(0 - <uint64_t>value) if value < 0 else digits_of(<uint64_t>value)


cdef inline uint8_t* put_signed(uint8_t* to, int64_t value) noexcept nogil:
    if value >= 0:
        return put_number(to, <uint64_t>value)
    to[0] = 45
    return put_number(to + 1, 0 - <uint64_t>value)


def put_acknowledgements(
    uint8_t[::1] buffer, Py_ssize_t at, int32_t[:, ::1] frames, bytes prefix not None, const int64_t[:] sequences,
    const int64_t[:] times, int64_t number, int64_t left
):
    cdef Py_ssize_t most = buffer.shape[0], rows = frames.shape[0], row, size, head = PyBytes_GET_SIZE(prefix)
    cdef uint8_t* to
    if not rows == sequences.shape[0] == times.shape[0] or frames.shape[1] != WIDTH:
        raise ValueError(f"{rows} rows, {sequences.shape[0]} sequences, {times.shape[0]} times")
    for row in range(rows):
        size = head + 5 + signed_digits(sequences[row]) + signed_digits(number)
        size += signed_digits(times[row]) + signed_digits(left)
        check(at, size, most)
        to = put(&buffer[0] + at, PyBytes_AS_STRING(prefix), head)
        to = put(to, b"1.", 2)
        to = put_signed(to, sequences[row])
        to[0] = 46
        to = put_signed(to + 1, number)
        to[0] = 46
        to = put_signed(to + 1, times[row])
        to[0] = 46
        put_signed(to + 1, left)
        frames[row, REPLY] = <int32_t>at
        frames[row, REPLY_SIZE] = <int32_t>size
        at += size
        number += 1
        left -= 1
    return at


cdef class Rows:
    """The buffers of a block of payloads, held during a call."""

    cdef Py_buffer source
    cdef Py_buffer starts
    cdef Py_buffer sizes
    cdef Py_ssize_t count

    def __cinit__(self, block):
        PyObject_GetBuffer(block.data, &self.source, PyBUF_SIMPLE)
        PyObject_GetBuffer(block.starts, &self.starts, PyBUF_SIMPLE)
        PyObject_GetBuffer(block.sizes, &self.sizes, PyBUF_SIMPLE)
        if self.starts.itemsize != sizeof(int64_t) or self.sizes.itemsize != sizeof(uint32_t):
            raise ValueError("starts are none of int64 or sizes none of uint32")
        self.count = min(self.starts.len // 8, self.sizes.len // 4)

    def __dealloc__(self):
        # Does nothing for a buffer that was not acquired.
        PyBuffer_Release(&self.sizes)
        PyBuffer_Release(&self.starts)
        PyBuffer_Release(&self.source)

    cdef Py_ssize_t total(self, Py_ssize_t begin, Py_ssize_t end) except -1:
        """Bytes of the payloads of some rows, which must lie inside."""
        cdef const int64_t* starts = <const int64_t*>self.starts.buf
        cdef const uint32_t* sizes = <const uint32_t*>self.sizes.buf
        cdef Py_ssize_t i, total = 0
        if not 0 <= begin <= end <= self.count:
            raise ValueError(f"rows {begin} to {end} lie outside")
        for i in range(begin, end):
            check(starts[i], sizes[i], self.source.len)
            total += sizes[i]
        return total

    cdef bytes encode(self, Py_ssize_t begin, Py_ssize_t end, bytes head):
        """Frames of these rows, each with a line that begins with `head`."""
        cdef const uint8_t* base = <const uint8_t*>self.source.buf
        cdef const int64_t* starts = <const int64_t*>self.starts.buf
        cdef const uint32_t* sizes = <const uint32_t*>self.sizes.buf
        cdef uint8_t* to
        cdef const uint8_t* prefix = <const uint8_t*>PyBytes_AS_STRING(head)
        cdef const uint8_t* line = NULL  # where the line before was written
        cdef Py_ssize_t i, prefix_size = PyBytes_GET_SIZE(head), line_size = 0
        cdef Py_ssize_t total = self.total(begin, end) + (end - begin) * (prefix_size + 4)
        cdef int64_t last = -1
        cdef int digits = 0
        cdef bytes result
        for i in range(begin, end):
            if sizes[i] != last:
                last = sizes[i]
                digits = digits_of(sizes[i])
            total += digits
        result = PyBytes_FromStringAndSize(NULL, total)
        to = <uint8_t*>PyBytes_AS_STRING(result)
        last = -1
        for i in range(begin, end):
            if sizes[i] == last:
                to = put(to, line, line_size)
                line = to - line_size
            else:
                last = sizes[i]
                line = to
                to = put_end(put_number(put(to, prefix, prefix_size), sizes[i]))
                line_size = to - line
            to = put_end(put(to, base + starts[i], sizes[i]))
        return result


cdef bytes head_of_message(bytes subject, bytes sid):
    """Beginning of the line of a MSG frame."""
    cdef Py_ssize_t name = PyBytes_GET_SIZE(subject), receiver = PyBytes_GET_SIZE(sid)
    cdef bytes head = PyBytes_FromStringAndSize(NULL, name + receiver + 6)
    cdef uint8_t* to = put(<uint8_t*>PyBytes_AS_STRING(head), b"MSG ", 4)
    to = put(to, PyBytes_AS_STRING(subject), name)
    to[0] = 32
    to = put(to + 1, PyBytes_AS_STRING(sid), receiver)
    to[0] = 32
    return head


def hand_out_runs(runs, block, Py_ssize_t at, dict known not None):
    cdef Py_ssize_t count = len(runs), begin, end, size, pending, out = 0, total = 0
    cdef list fresh = [], waiting
    cdef bytes subject, sid, frames
    cdef Rows rows = Rows(block)
    while at < count:
        subject, begin, end = runs[at]
        route = known.get(subject)
        to = None if route is None else route.only
        if to is None or to.handler is not None or to.limit or to.closed:
            break
        client = to.client
        size = rows.total(begin, end)
        if not client.direct or size > SMALL:
            break
        waiting = client.out
        if PyList_GET_SIZE(waiting):
            pending = client.out_size
            if pending > SMALL:
                break
        else:
            pending = 0
            fresh.append(client)
        sid = to.sid
        frames = rows.encode(begin, end, head_of_message(subject, sid))
        waiting.append(frames)
        client.out_size = pending + PyBytes_GET_SIZE(frames)
        to.delivered += end - begin
        counters = client.counters
        counters.out_msgs += end - begin
        counters.out_bytes += size
        out += end - begin
        total += size
        at += 1
    return at, out, total, fresh


def encode_block(block, Py_ssize_t begin, Py_ssize_t end, bytes subject not None, bytes sid not None):
    return Rows(block).encode(begin, end, head_of_message(subject, sid))


def encode_publishes(block, Py_ssize_t begin, Py_ssize_t end, bytes subject not None):
    return Rows(block).encode(begin, end, b"PUB %b " % subject)
