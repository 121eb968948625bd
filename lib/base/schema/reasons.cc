// reasons.cc - the texts of reasons.def.
// SPDX-License-Identifier: Apache-2.0
#include "base/schema/reasons.h"

namespace postern {
namespace {

struct ReasonRow {
  const char* name;
  const char* text;
};
constexpr ReasonRow kReasonRows[] = {
#define PSTN_REASON(name, short_name, text) {short_name, text},
#include "base/schema/reasons.def"
#undef PSTN_REASON
};
static_assert(sizeof(kReasonRows) / sizeof(kReasonRows[0]) == kReasonCount);

}  // namespace

const char* ReasonName(uint32_t code) {
  return code < kReasonCount ? kReasonRows[code].name : "unknown";
}
const char* ReasonText(uint32_t code) {
  return code < kReasonCount
             ? kReasonRows[code].text
             : "This code is not known here: posternctl and the library differ in version.";
}

}  // namespace postern
