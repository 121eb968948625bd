// reasons.cc - the texts of reasons.def.
// SPDX-License-Identifier: Apache-2.0
#include "base/schema/reasons.h"

namespace postern {
namespace {

struct Row {
  const char* name;
  const char* text;
};
constexpr Row kRows[] = {
#define PSTN_REASON(name, short_name, text) {short_name, text},
#include "base/schema/reasons.def"
#undef PSTN_REASON
};
static_assert(sizeof(kRows) / sizeof(kRows[0]) == kReasonCount);

}  // namespace

const char* ReasonName(uint32_t code) { return code < kReasonCount ? kRows[code].name : "unknown"; }
const char* ReasonText(uint32_t code) {
  return code < kReasonCount
             ? kRows[code].text
             : "This code is not known here: posternctl and the library differ in version.";
}

}  // namespace postern
