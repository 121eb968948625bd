// reasons.h - codes of why a socket is not accelerated, their names and what to do about them.
// SPDX-License-Identifier: Apache-2.0
//
// The list is reasons.def. A code lives in pstn_ep.reason (another process may have written it, so
// every function takes any number) and counts in pstn_stack_hdr.reasons. Thread-safe, constant
// data.
#pragma once
#include <cstdint>

#include "abi/postern_abi.h"

namespace postern {

enum Reason : uint32_t {
#define PSTN_REASON(name, short_name, text) kReason##name,
#include "base/schema/reasons.def"
#undef PSTN_REASON
  kReasonCount
};
static_assert(kReasonCount <= PSTN_COUNTERS, "pstn_stack_hdr.reasons has a place for each");

// "no-listener"; "unknown" when there is no such code.
const char* ReasonName(uint32_t code);
// What it means and what to do, in sentences.
const char* ReasonText(uint32_t code);

}  // namespace postern
