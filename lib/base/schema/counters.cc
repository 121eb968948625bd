// counters.cc - the texts of counters.def.
// SPDX-License-Identifier: Apache-2.0
#include "base/schema/counters.h"

namespace postern {
namespace {

struct CounterRow {
  const char* name;
  const char* text;
};
constexpr CounterRow kCounterRows[] = {
#define PSTN_COUNTER(name, text_name, text) {text_name, text},
#include "base/schema/counters.def"
#undef PSTN_COUNTER
};
static_assert(sizeof(kCounterRows) / sizeof(kCounterRows[0]) == kCounterCount);

}  // namespace

const char* CounterName(uint32_t counter) {
  return counter < kCounterCount ? kCounterRows[counter].name : "unknown";
}
const char* CounterText(uint32_t counter) {
  return counter < kCounterCount ? kCounterRows[counter].text : "";
}

}  // namespace postern
