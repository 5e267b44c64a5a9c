/* Checksums with AVX2, for processors that have it: rows of more than 240 bytes, at twice the speed. */

#if defined(__x86_64__)
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2"))), apply_to = function)
#define XXH_VECTOR 2 /* XXH_AVX2; Clang defines no __AVX2__ here */
#include <immintrin.h>
#else
#pragma GCC target("avx2")
#endif
#define NAMED(name) name##_avx2
#include "hashing.h"
#if defined(__clang__)
#pragma clang attribute pop
#endif
#else
typedef int nothing_to_see_here; /* C has no empty files */
#endif
