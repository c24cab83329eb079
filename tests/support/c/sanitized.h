#pragma once

/*
 * IS_SANITIZED: 1 in a build with AddressSanitizer or ThreadSanitizer, which takes ten times as long for arithmetic. A test
 * may then leave out repetitions, and nothing that only it looks at.
 */
#if defined(__has_feature)
#define HAS_FEATURE(name) __has_feature(name)
#else
#define HAS_FEATURE(name) 0
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || HAS_FEATURE(address_sanitizer)
#define IS_SANITIZED 1
#else
#define IS_SANITIZED 0
#endif
