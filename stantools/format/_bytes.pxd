"""Little-endian loads and stores, varints, and CRC-32 of any polynomial, in C (for `kernels.pyx`, also the broker's).

Portable C with tables; on x86-64 with gcc or clang also carry-less multiplication, on processors that have
it. The tables and constants come from `stantools.format.crc`.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

cdef extern from *:
    """
    #include <stdint.h>
    #include <string.h>

    /* Files are little endian, whatever the machine is. */
    #if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    #define LITTLE32(v) __builtin_bswap32(v)
    #define LITTLE64(v) __builtin_bswap64(v)
    #else
    #define LITTLE32(v) (v)
    #define LITTLE64(v) (v)
    #endif

    static inline uint32_t load32(const uint8_t *p) { uint32_t v; memcpy(&v, p, 4); return LITTLE32(v); }
    static inline uint64_t load64(const uint8_t *p) { uint64_t v; memcpy(&v, p, 8); return LITTLE64(v); }
    static inline void store32(uint8_t *p, uint32_t v) { v = LITTLE32(v); memcpy(p, &v, 4); }
    static inline void store64(uint8_t *p, uint64_t v) { v = LITTLE64(v); memcpy(p, &v, 8); }

    /* Number of zero bits below the lowest one; v is not 0. */
    #if defined(__GNUC__)
    static inline int lowest_bit(uint64_t v) { return __builtin_ctzll(v); }
    #else
    static inline int lowest_bit(uint64_t v) { int n = 0; while (!(v & 1)) { v >>= 1; n++; } return n; }
    #endif

    /* CRC-32 by tables, 16 bytes at a time. `tables` is Crc.tables. */
    #define TABLE(k, v) tables[256 * (k) + ((v) & 0xFF)]
    static uint32_t crc_by_tables(const uint8_t *p, size_t n, const uint32_t *tables)
    {
        uint32_t r = 0xFFFFFFFF;
        while (n >= 16) {
            uint32_t a = load32(p) ^ r, b = load32(p + 4), c = load32(p + 8), d = load32(p + 12);
            r = TABLE(15, a) ^ TABLE(14, a >> 8) ^ TABLE(13, a >> 16) ^ TABLE(12, a >> 24)
              ^ TABLE(11, b) ^ TABLE(10, b >> 8) ^ TABLE(9, b >> 16) ^ TABLE(8, b >> 24)
              ^ TABLE(7, c) ^ TABLE(6, c >> 8) ^ TABLE(5, c >> 16) ^ TABLE(4, c >> 24)
              ^ TABLE(3, d) ^ TABLE(2, d >> 8) ^ TABLE(1, d >> 16) ^ TABLE(0, d >> 24);
            p += 16;
            n -= 16;
        }
        if (n >= 8) {
            uint32_t a = load32(p) ^ r, b = load32(p + 4);
            r = TABLE(7, a) ^ TABLE(6, a >> 8) ^ TABLE(5, a >> 16) ^ TABLE(4, a >> 24)
              ^ TABLE(3, b) ^ TABLE(2, b >> 8) ^ TABLE(1, b >> 16) ^ TABLE(0, b >> 24);
            p += 8;
            n -= 8;
        }
        if (n >= 4) {
            uint32_t a = load32(p) ^ r;
            r = TABLE(3, a) ^ TABLE(2, a >> 8) ^ TABLE(1, a >> 16) ^ TABLE(0, a >> 24);
            p += 4;
            n -= 4;
        }
        while (n--)
            r = (r >> 8) ^ TABLE(0, r ^ *p++);
        return ~r;
    }

    /* CRC-32 by carry-less multiplication. 16 bytes are a polynomial of degree 127; it is moved ahead by the width of
     * what follows, modulo the CRC's polynomial, and added to that. `k` is Crc.folding. */
    #if defined(__x86_64__) && defined(__GNUC__)
    #include <immintrin.h>

    static int has_multiplication(void)
    {
        __builtin_cpu_init();
        return __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
    }

    #define BLOCK(q) _mm_loadu_si128((const __m128i *)(q))
    #define AHEAD(x, factors) \\
        _mm_xor_si128(_mm_clmulepi64_si128(x, factors, 0x00), _mm_clmulepi64_si128(x, factors, 0x11))

    /* From 128 bits to 96 and to 64, then the Barrett reduction to 32. */
    __attribute__((target("pclmul,sse4.1")))
    static inline uint32_t crc_of_block(__m128i x, const uint64_t *k)
    {
        const __m128i low32 = _mm_cvtsi32_si128(-1);
        __m128i q = _mm_clmulepi64_si128(x, BLOCK(k + 8), 0x00);
        x = _mm_xor_si128(q, _mm_slli_si128(_mm_srli_si128(x, 8), 4));
        q = _mm_clmulepi64_si128(x, BLOCK(k + 8), 0x10);
        x = _mm_srli_si128(_mm_xor_si128(x, q), 8);
        q = _mm_clmulepi64_si128(_mm_and_si128(x, low32), BLOCK(k + 10), 0x00);
        q = _mm_clmulepi64_si128(_mm_and_si128(q, low32), BLOCK(k + 10), 0x10);
        return ~(uint32_t)_mm_extract_epi32(_mm_xor_si128(x, q), 1);
    }

    #if __GNUC__ >= 8 || __clang_major__ >= 8 /* older compilers do not know such registers */
    #define WIDE "avx512f,avx512bw,vpclmulqdq,pclmul,sse4.1"

    static int has_wide_multiplication(void)
    {
        static int known = -1;
        if (known < 0) {
            __builtin_cpu_init();
            known = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw")
                && __builtin_cpu_supports("vpclmulqdq");
        }
        return known;
    }

    #define BLOCKS(q) _mm512_loadu_si512((const void *)(q))
    #define FACTORS(q) _mm512_broadcast_i32x4(BLOCK(q))
    #define WIDE_AHEAD(x, factors, y) _mm512_ternarylogic_epi64( \\
        _mm512_clmulepi64_epi128(x, factors, 0x00), _mm512_clmulepi64_epi128(x, factors, 0x11), y, 0x96)

    /* The same with four blocks in a register, for 64 bytes and more. */
    __attribute__((target(WIDE)))
    static uint32_t crc_by_wide_multiplication(const uint8_t *p, size_t n, const uint64_t *k)
    {
        /* Inverts the first four bytes of the message: from inverts + head on, and in the next register. */
        static const uint8_t inverts[192] = {[64] = 255, [65] = 255, [66] = 255, [67] = 255};
        const __m512i by64 = FACTORS(k + 6);
        const size_t head = n & 63;
        size_t left = n / 64 - 1;
        __m512i x, y;

        /* The odd bytes come first, at the end of a register that begins with zeros. */
        x = _mm512_maskz_loadu_epi8(~(~(uint64_t)0 >> head), p + head - 64);
        x = _mm512_xor_si512(x, BLOCKS(inverts + head));
        p += head;
        y = _mm512_xor_si512(BLOCKS(p), BLOCKS(inverts + 64 + head));
        x = WIDE_AHEAD(x, by64, y);
        p += 64;
        if (left >= 7) {
            const __m512i by256 = FACTORS(k + 12);
            __m512i z = BLOCKS(p + 64), w = BLOCKS(p + 128);
            y = BLOCKS(p);
            p += 192;
            left -= 3;
            do {
                x = WIDE_AHEAD(x, by256, BLOCKS(p));
                y = WIDE_AHEAD(y, by256, BLOCKS(p + 64));
                z = WIDE_AHEAD(z, by256, BLOCKS(p + 128));
                w = WIDE_AHEAD(w, by256, BLOCKS(p + 192));
                p += 256;
                left -= 4;
            } while (left >= 4);
            x = WIDE_AHEAD(x, by64, y);
            x = WIDE_AHEAD(x, by64, z);
            x = WIDE_AHEAD(x, by64, w);
        }
        while (left--) {
            x = WIDE_AHEAD(x, by64, BLOCKS(p));
            p += 64;
        }
        __m128i one = _mm512_castsi512_si128(x), two = _mm512_extracti32x4_epi32(x, 1);
        __m128i three = _mm512_extracti32x4_epi32(x, 2), four = _mm512_extracti32x4_epi32(x, 3);
        one = _mm_xor_si128(AHEAD(one, BLOCK(k + 4)), AHEAD(two, BLOCK(k + 2)));
        return crc_of_block(_mm_xor_si128(one, _mm_xor_si128(AHEAD(three, BLOCK(k)), four)), k);
    }

    /* How many 32-byte records from p on end in their own CRC, counted by fours, four side by side. A CRC over bytes and
     * over their CRC is the same for all bytes: that of four zeros. */
    __attribute__((target(WIDE)))
    static size_t good_by_wide_multiplication(const uint8_t *p, size_t n, const uint64_t *k, uint32_t four_zeros)
    {
        const __m512i firsts = _mm512_set_epi64(13, 12, 9, 8, 5, 4, 1, 0);
        const __m512i lasts = _mm512_set_epi64(15, 14, 11, 10, 7, 6, 3, 2);
        const __m512i by16 = FACTORS(k), to96 = FACTORS(k + 8), barrett = FACTORS(k + 10);
        const __m512i low32 = _mm512_broadcast_i32x4(_mm_cvtsi32_si128(-1)), right = _mm512_set1_epi32((int)~four_zeros);
        size_t good = 0;

        for (; good + 4 <= n; good += 4, p += 128) {
            __m512i a = BLOCKS(p), b = BLOCKS(p + 64), x, q;
            x = _mm512_xor_si512(_mm512_permutex2var_epi64(a, firsts, b), low32);
            x = WIDE_AHEAD(x, by16, _mm512_permutex2var_epi64(a, lasts, b));
            /* As crc_of_block. */
            q = _mm512_clmulepi64_epi128(x, to96, 0x00);
            x = _mm512_xor_si512(q, _mm512_bslli_epi128(_mm512_bsrli_epi128(x, 8), 4));
            q = _mm512_clmulepi64_epi128(x, to96, 0x10);
            x = _mm512_bsrli_epi128(_mm512_xor_si512(x, q), 8);
            q = _mm512_clmulepi64_epi128(_mm512_and_si512(x, low32), barrett, 0x00);
            q = _mm512_clmulepi64_epi128(_mm512_and_si512(q, low32), barrett, 0x10);
            if ((_mm512_cmpeq_epi32_mask(_mm512_xor_si512(x, q), right) & 0x2222) != 0x2222)
                break;
        }
        return good;
    }
    #endif

    /* For 16 bytes and more. */
    __attribute__((target("pclmul,sse4.1")))
    static uint32_t crc_by_multiplication(const uint8_t *p, size_t n, const uint64_t *k)
    {
    #ifdef WIDE
        if (n >= 64 && has_wide_multiplication())
            return crc_by_wide_multiplication(p, n, k);
    #endif

        /* Shuffles that move the bytes of a block by s: from moves + 16 - s to the end, from + 16 + s to the start. */
        static const uint8_t moves[48] = {
            128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128,
            0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15,
            128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128};
        const __m128i by16 = BLOCK(k), low32 = _mm_cvtsi32_si128(-1);
        const size_t head = n & 15;
        size_t blocks = n / 16 - 1;
        __m128i x, q;

        /* The odd bytes come first, as a block that begins with zeros, which do not count. The first four bytes of the
         * message are inverted, as the start value of the register asks for: here, and if the head is short, behind. */
        x = _mm_shuffle_epi8(_mm_xor_si128(BLOCK(p), low32), BLOCK(moves + head));
        p += head;
        q = _mm_xor_si128(BLOCK(p), _mm_shuffle_epi8(low32, BLOCK(moves + 16 + head)));
        x = _mm_xor_si128(AHEAD(x, by16), q);
        p += 16;
        if (blocks >= 7) {
            /* Four blocks in parallel: none waits for the product of the one before. */
            const __m128i by64 = BLOCK(k + 6);
            __m128i y = BLOCK(p), z = BLOCK(p + 16), w = BLOCK(p + 32);
            p += 48;
            blocks -= 3;
            do {
                x = _mm_xor_si128(AHEAD(x, by64), BLOCK(p));
                y = _mm_xor_si128(AHEAD(y, by64), BLOCK(p + 16));
                z = _mm_xor_si128(AHEAD(z, by64), BLOCK(p + 32));
                w = _mm_xor_si128(AHEAD(w, by64), BLOCK(p + 48));
                p += 64;
                blocks -= 4;
            } while (blocks >= 4);
            x = _mm_xor_si128(AHEAD(x, BLOCK(k + 4)), AHEAD(y, BLOCK(k + 2)));
            x = _mm_xor_si128(x, _mm_xor_si128(AHEAD(z, by16), w));
        }
        while (blocks--) {
            x = _mm_xor_si128(AHEAD(x, by16), BLOCK(p));
            p += 16;
        }
        return crc_of_block(x, k);
    }
    #else
    static int has_multiplication(void) { return 0; }
    static uint32_t crc_by_multiplication(const uint8_t *p, size_t n, const uint64_t *k)
    {
        (void)p; (void)n; (void)k;
        return 0; /* never called */
    }
    #endif

    /* The number of n 32-byte records from p on that end in their own CRC, before the first that does not; or fewer. */
    static size_t good_records(const uint8_t *p, size_t n, const uint32_t *tables, const uint64_t *k)
    {
        size_t good = 0;
    #ifdef WIDE
        if (n >= 4 && has_wide_multiplication())
            return good_by_wide_multiplication(p, n, k, crc_by_tables((const uint8_t[4]){0}, 4, tables));
    #endif
        while (good < n && crc_by_tables(p + 32 * good, 28, tables) == load32(p + 32 * good + 28))
            good++;
        return good;
    }
    """
    uint32_t load32(const uint8_t* p) noexcept nogil
    uint64_t load64(const uint8_t* p) noexcept nogil
    void store32(uint8_t* p, uint32_t v) noexcept nogil
    void store64(uint8_t* p, uint64_t v) noexcept nogil
    int lowest_bit(uint64_t v) noexcept nogil
    int has_multiplication() noexcept nogil
    uint32_t crc_by_tables(const uint8_t* p, size_t n, const uint32_t* tables) noexcept nogil
    uint32_t crc_by_multiplication(const uint8_t* p, size_t n, const uint64_t* k) noexcept nogil
    size_t good_records(const uint8_t* p, size_t n, const uint32_t* tables, const uint64_t* k) noexcept nogil

cdef enum:
    #: Below this size tables are as fast as multiplication.
    MULTIPLY_FROM = 32

cdef struct Polynomial:
    const uint32_t* tables
    const uint64_t* folding
    size_t multiply_from


cdef inline size_t multiply_from() noexcept nogil:
    """The size from which on this processor multiplies."""
    return MULTIPLY_FROM if has_multiplication() else <size_t>-1


cdef inline uint32_t crc_of(const uint8_t* p, size_t size, const Polynomial* polynomial) noexcept nogil:
    if size >= polynomial.multiply_from:
        return crc_by_multiplication(p, size, polynomial.folding)
    return crc_by_tables(p, size, polynomial.tables)


cdef inline uint8_t* put_varint(uint8_t* p, uint64_t value) noexcept nogil:
    while value > 0x7F:
        p[0] = <uint8_t>(value & 0x7F) | 0x80
        value >>= 7
        p += 1
    p[0] = <uint8_t>value
    return p + 1
