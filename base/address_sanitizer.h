#pragma once

/* IS_ADDRESS_SANITIZED: 1 in a build with AddressSanitizer, which takes a call of vfork() or clone() for an ordinary one
 * unless it knows of it. */
#if defined(__has_feature)
#define ADDRESS_SANITIZER_FEATURE __has_feature(address_sanitizer)
#else
#define ADDRESS_SANITIZER_FEATURE 0
#endif
#if defined(__SANITIZE_ADDRESS__) || ADDRESS_SANITIZER_FEATURE
#define IS_ADDRESS_SANITIZED 1
#else
#define IS_ADDRESS_SANITIZED 0
#endif
