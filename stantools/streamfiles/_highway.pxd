"""HighwayHash-64 in C (jetstream-migration.md section 6): portable, and with AVX2 on processors that have it.

The input is a list of parts that count as one text, because the hash of a record leaves its length fields out. The key
is 32 bytes. A part is read once, and no byte outside of it.
"""

from libc.stdint cimport uint8_t, uint64_t

cdef extern from *:
    """
    #ifndef STANTOOLS_HIGHWAY
    #define STANTOOLS_HIGHWAY
    #include <stddef.h>
    #include <stdint.h>
    #include <string.h>

    typedef struct { const uint8_t *start; size_t size; } HashPart;

    #define PACKET 32

    /* The initial state, apart from the key: mul0, then mul1. */
    static const uint64_t HIGHWAY_BEGIN[8] = {
        0xdbe6d5d5fe4cce2fULL, 0xa4093822299f31d0ULL, 0x13198a2e03707344ULL, 0x243f6a8885a308d3ULL,
        0x3bd39e10cb0ef593ULL, 0xc0acf169b5f18a8cULL, 0xbe5466cf34e90c6cULL, 0x452821e638d01377ULL};

    #if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    #define HIGHWAY_LANE(v) __builtin_bswap64(v)
    #else
    #define HIGHWAY_LANE(v) (v)
    #endif
    static inline uint64_t highway_lane(const uint8_t *p)
    {
        uint64_t v;
        memcpy(&v, p, 8);
        return HIGHWAY_LANE(v);
    }
    #define SWAP_HALVES(v) ((v) >> 32 | (v) << 32)

    /* The last 1 to 31 bytes of the input as a packet padded in the hash's own way. */
    static inline void highway_last_packet(const uint8_t *rest, size_t size, uint8_t *packet)
    {
        const size_t words = size & ~(size_t)3, odd = size & 3;
        memset(packet, 0, PACKET);
        memcpy(packet, rest, words);
        if (size >= 16)
            memcpy(packet + 28, rest + size - 4, 4);
        else if (odd) {
            packet[16] = rest[words];
            packet[17] = rest[words + (odd >> 1)];
            packet[18] = rest[words + odd - 1];
        }
    }

    typedef struct { uint64_t v0[4], v1[4], mul0[4], mul1[4]; } HighwayState;

    #define BYTE(n) (0xFFULL << 8 * (n))

    /* Adds the shuffled bytes of a pair of lanes to another pair. */
    static inline void highway_zip(const uint64_t *from, uint64_t *to)
    {
        const uint64_t even = from[0], odd = from[1];
        to[0] += ((even & BYTE(3)) | (odd & BYTE(4))) >> 24 | (even & BYTE(2))
               | ((even & BYTE(5)) | (odd & BYTE(6))) >> 16 | (even & BYTE(1)) << 32
               | (odd & BYTE(7)) >> 8 | even << 56;
        to[1] += ((odd & BYTE(3)) | (even & BYTE(4))) >> 24 | (odd & BYTE(2))
               | (odd & BYTE(5)) >> 16 | (odd & BYTE(1)) << 24
               | (even & BYTE(6)) >> 8 | (odd & BYTE(0)) << 48 | (even & BYTE(7));
    }

    static inline void highway_update(HighwayState *s, const uint64_t *packet)
    {
        for (int i = 0; i < 4; i++) {
            s->v1[i] += s->mul0[i] + packet[i];
            s->mul0[i] ^= (s->v1[i] & 0xFFFFFFFF) * (s->v0[i] >> 32);
            s->v0[i] += s->mul1[i];
            s->mul1[i] ^= (s->v0[i] & 0xFFFFFFFF) * (s->v1[i] >> 32);
        }
        highway_zip(s->v1, s->v0);
        highway_zip(s->v1 + 2, s->v0 + 2);
        highway_zip(s->v0, s->v1);
        highway_zip(s->v0 + 2, s->v1 + 2);
    }

    static inline void highway_update_bytes(HighwayState *s, const uint8_t *p)
    {
        const uint64_t packet[4] = {
            highway_lane(p), highway_lane(p + 8), highway_lane(p + 16), highway_lane(p + 24)};
        highway_update(s, packet);
    }

    static uint64_t highway_portable(const uint8_t *key, const HashPart *parts, size_t count)
    {
        HighwayState s;
        uint8_t rest[PACKET], last[PACKET];
        size_t kept = 0;
        for (int i = 0; i < 4; i++) {
            const uint64_t lane = highway_lane(key + 8 * i);
            s.mul0[i] = HIGHWAY_BEGIN[i];
            s.mul1[i] = HIGHWAY_BEGIN[4 + i];
            s.v0[i] = s.mul0[i] ^ lane;
            s.v1[i] = s.mul1[i] ^ SWAP_HALVES(lane);
        }
        for (size_t part = 0; part < count; part++) {
            const uint8_t *p = parts[part].start;
            size_t left = parts[part].size;
            if (kept) {
                const size_t taken = left < PACKET - kept ? left : PACKET - kept;
                memcpy(rest + kept, p, taken);
                kept += taken;
                p += taken;
                left -= taken;
                if (kept < PACKET)
                    continue;
                highway_update_bytes(&s, rest);
            }
            for (; left >= PACKET; p += PACKET, left -= PACKET)
                highway_update_bytes(&s, p);
            memcpy(rest, p, left);
            kept = left;
        }
        if (kept) {
            for (int i = 0; i < 4; i++) {
                const uint32_t low = (uint32_t)s.v1[i], high = (uint32_t)(s.v1[i] >> 32);
                s.v0[i] += ((uint64_t)kept << 32) + kept;
                s.v1[i] = (uint64_t)(high << kept | high >> (32 - kept)) << 32 | (low << kept | low >> (32 - kept));
            }
            highway_last_packet(rest, kept, last);
            highway_update_bytes(&s, last);
        }
        for (int round = 0; round < 4; round++) {
            const uint64_t packet[4] = {
                SWAP_HALVES(s.v0[2]), SWAP_HALVES(s.v0[3]), SWAP_HALVES(s.v0[0]), SWAP_HALVES(s.v0[1])};
            highway_update(&s, packet);
        }
        return s.v0[0] + s.v1[0] + s.mul0[0] + s.mul1[0];
    }

    #if defined(__x86_64__) && defined(__GNUC__)
    #include <immintrin.h>

    static int has_avx2(void)
    {
        __builtin_cpu_init();
        return __builtin_cpu_supports("avx2");
    }

    /* The four lanes of a variable in a register. */
    #define LANES(p) _mm256_loadu_si256((const __m256i *)(p))
    #define UPDATE(packet) do { \\
        v1 = _mm256_add_epi64(v1, _mm256_add_epi64(mul0, packet)); \\
        mul0 = _mm256_xor_si256(mul0, _mm256_mul_epu32(v1, _mm256_srli_epi64(v0, 32))); \\
        v0 = _mm256_add_epi64(v0, mul1); \\
        mul1 = _mm256_xor_si256(mul1, _mm256_mul_epu32(v0, _mm256_srli_epi64(v1, 32))); \\
        v0 = _mm256_add_epi64(v0, _mm256_shuffle_epi8(v1, zip)); \\
        v1 = _mm256_add_epi64(v1, _mm256_shuffle_epi8(v0, zip)); \\
    } while (0)

    __attribute__((target("avx2")))
    static uint64_t highway_avx2(const uint8_t *key, const HashPart *parts, size_t count)
    {
        const __m256i zip = _mm256_setr_epi8(
            3, 12, 2, 5, 14, 1, 15, 0, 11, 4, 10, 13, 9, 6, 8, 7, 3, 12, 2, 5, 14, 1, 15, 0, 11, 4, 10, 13, 9, 6, 8, 7);
        const __m256i keys = LANES(key);
        __m256i mul0 = LANES(HIGHWAY_BEGIN), mul1 = LANES(HIGHWAY_BEGIN + 4);
        __m256i v0 = _mm256_xor_si256(mul0, keys);
        __m256i v1 = _mm256_xor_si256(mul1, _mm256_shuffle_epi32(keys, 0xB1));
        uint8_t rest[PACKET], last[PACKET];
        size_t kept = 0;
        __m128i sum;
        for (size_t part = 0; part < count; part++) {
            const uint8_t *p = parts[part].start;
            size_t left = parts[part].size;
            if (kept) {
                const size_t taken = left < PACKET - kept ? left : PACKET - kept;
                memcpy(rest + kept, p, taken);
                kept += taken;
                p += taken;
                left -= taken;
                if (kept < PACKET)
                    continue;
                UPDATE(LANES(rest));
            }
            for (; left >= PACKET; p += PACKET, left -= PACKET)
                UPDATE(LANES(p));
            memcpy(rest, p, left);
            kept = left;
        }
        if (kept) {
            const __m128i left = _mm_cvtsi32_si128((int)kept), right = _mm_cvtsi32_si128(32 - (int)kept);
            v0 = _mm256_add_epi64(v0, _mm256_set1_epi32((int)kept));
            v1 = _mm256_or_si256(_mm256_sll_epi32(v1, left), _mm256_srl_epi32(v1, right));
            highway_last_packet(rest, kept, last);
            UPDATE(LANES(last));
        }
        for (int round = 0; round < 4; round++)
            UPDATE(_mm256_shuffle_epi32(_mm256_permute2x128_si256(v0, v0, 1), 0xB1));
        sum = _mm256_castsi256_si128(_mm256_add_epi64(_mm256_add_epi64(v0, v1), _mm256_add_epi64(mul0, mul1)));
        return (uint64_t)_mm_cvtsi128_si64(sum);
    }
    #else
    static int has_avx2(void) { return 0; }
    static uint64_t highway_avx2(const uint8_t *key, const HashPart *parts, size_t count)
    {
        return highway_portable(key, parts, count); /* never called */
    }
    #endif
    #endif
    """
    ctypedef struct HashPart:
        const uint8_t* start
        size_t size

    int has_avx2() noexcept nogil
    uint64_t highway_portable(const uint8_t* key, const HashPart* parts, size_t count) noexcept nogil
    uint64_t highway_avx2(const uint8_t* key, const HashPart* parts, size_t count) noexcept nogil
