// SPDX-License-Identifier: Apache-2.0
// Which sanitizer this test program runs under: the few cases that a sanitizer makes impossible or slow ask here.
#pragma once

namespace harness {

#if defined(__has_feature)
#define SHMB_HAS_FEATURE(x) __has_feature(x)
#else
#define SHMB_HAS_FEATURE(x) 0
#endif

#if defined(__SANITIZE_ADDRESS__) || SHMB_HAS_FEATURE(address_sanitizer)
inline constexpr bool kAddressSanitizer = true;
#else
inline constexpr bool kAddressSanitizer = false;
#endif

#if defined(__SANITIZE_THREAD__) || SHMB_HAS_FEATURE(thread_sanitizer)
inline constexpr bool kThreadSanitizer = true;
#else
inline constexpr bool kThreadSanitizer = false;
#endif

// Counts of repetitions are divided by it, never a promise.
inline constexpr int kSlowdown = kThreadSanitizer ? 20 : kAddressSanitizer ? 5 : 1;

#undef SHMB_HAS_FEATURE

}  // namespace harness
