"""The header block of a migrated message in C: exactly the bytes of `stantools.streamfiles.headers.header_block`.

`header_size` returns the number of bytes that `write_header` writes, 0 for a message that needs no block; `write_header`
returns their end. Only `channel_len` and `reply_len` bytes are read. `decimal_size` and `write_decimal` do the same for
a number, in the format of `%d`.
"""

from libc.stdint cimport int64_t, uint8_t, uint64_t

cdef extern from *:
    """
    #ifndef STANTOOLS_HEADERS
    #define STANTOOLS_HEADERS
    #include <stddef.h>
    #include <stdint.h>
    #include <string.h>

    #define HEADER_VERSION "NATS/1.0\\r\\n"
    #define HEADER_CHANNEL "Nats-Streaming-Channel: "
    #define HEADER_SEQUENCE "\\r\\nNats-Streaming-Sequence: "
    #define HEADER_TIMESTAMP "\\r\\nNats-Streaming-Timestamp: "
    #define HEADER_REPLY "Nats-Streaming-Reply: "
    #define HEADER_LINE "\\r\\n"
    #define TEXT_SIZE(text) (sizeof(text) - 1)
    #define WRITE_TEXT(p, text) (memcpy(p, text, TEXT_SIZE(text)), (p) + TEXT_SIZE(text))

    static inline uint64_t magnitude(int64_t v) { return v < 0 ? 0 - (uint64_t)v : (uint64_t)v; }

    static inline size_t unsigned_decimal_size(uint64_t v)
    {
        size_t n = 1;
        while (v >= 10000) { v /= 10000; n += 4; }
        return n + (v >= 10) + (v >= 100) + (v >= 1000);
    }
    static inline size_t decimal_size(int64_t v) { return (v < 0) + unsigned_decimal_size(magnitude(v)); }

    static inline uint8_t *write_unsigned_decimal(uint8_t *p, uint64_t v)
    {
        uint8_t *end = p + unsigned_decimal_size(v), *q = end;
        while (v >= 100) {
            uint32_t pair = (uint32_t)(v % 100);
            v /= 100;
            *--q = (uint8_t)('0' + pair % 10);
            *--q = (uint8_t)('0' + pair / 10);
        }
        *--q = (uint8_t)('0' + v % 10);
        if (v >= 10)
            *--q = (uint8_t)('0' + v / 10);
        return end;
    }
    static inline uint8_t *write_decimal(uint8_t *p, int64_t v)
    {
        if (v < 0)
            *p++ = '-';
        return write_unsigned_decimal(p, magnitude(v));
    }

    static inline size_t header_size(size_t channel_len, uint64_t seq, int64_t ts, size_t reply_len, int origin)
    {
        size_t n = 0;
        if (!origin && !reply_len)
            return 0;
        if (origin)
            n = TEXT_SIZE(HEADER_CHANNEL) + channel_len + TEXT_SIZE(HEADER_SEQUENCE) + unsigned_decimal_size(seq)
                + TEXT_SIZE(HEADER_TIMESTAMP) + decimal_size(ts) + TEXT_SIZE(HEADER_LINE);
        if (reply_len)
            n += TEXT_SIZE(HEADER_REPLY) + reply_len + TEXT_SIZE(HEADER_LINE);
        return TEXT_SIZE(HEADER_VERSION) + n + TEXT_SIZE(HEADER_LINE);
    }

    static inline uint8_t *write_header(uint8_t *p, const uint8_t *channel, size_t channel_len, uint64_t seq, int64_t ts,
                                        const uint8_t *reply, size_t reply_len, int origin)
    {
        if (!origin && !reply_len)
            return p;
        p = WRITE_TEXT(p, HEADER_VERSION);
        if (origin) {
            p = WRITE_TEXT(p, HEADER_CHANNEL);
            memcpy(p, channel, channel_len);
            p = WRITE_TEXT(p + channel_len, HEADER_SEQUENCE);
            p = write_unsigned_decimal(p, seq);
            p = WRITE_TEXT(p, HEADER_TIMESTAMP);
            p = write_decimal(p, ts);
            p = WRITE_TEXT(p, HEADER_LINE);
        }
        if (reply_len) {
            p = WRITE_TEXT(p, HEADER_REPLY);
            memcpy(p, reply, reply_len);
            p = WRITE_TEXT(p + reply_len, HEADER_LINE);
        }
        return WRITE_TEXT(p, HEADER_LINE);
    }
    #endif
    """
    size_t unsigned_decimal_size(uint64_t v) noexcept nogil
    size_t decimal_size(int64_t v) noexcept nogil
    uint8_t* write_unsigned_decimal(uint8_t* p, uint64_t v) noexcept nogil
    uint8_t* write_decimal(uint8_t* p, int64_t v) noexcept nogil
    size_t header_size(size_t channel_len, uint64_t seq, int64_t ts, size_t reply_len, bint origin) noexcept nogil
    uint8_t* write_header(
        uint8_t* p, const uint8_t* channel, size_t channel_len, uint64_t seq, int64_t ts, const uint8_t* reply,
        size_t reply_len, bint origin
    ) noexcept nogil
