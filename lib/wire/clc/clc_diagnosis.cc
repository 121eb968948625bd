// SPDX-License-Identifier: Apache-2.0
// clc_diagnosis.cc - the texts of clc_diagnosis.def.
#include "wire/clc/clc_diagnosis.h"

namespace postern {
namespace {

struct Row {
  uint32_t code;
  const char* name;
  const char* text;
};
constexpr Row kRows[] = {
#define PSTN_CLC_DIAGNOSIS(code, name, short_name, text) {code, short_name, text},
#include "wire/clc/clc_diagnosis.def"
#undef PSTN_CLC_DIAGNOSIS
};
static_assert(sizeof(kRows) / sizeof(kRows[0]) == kClcDiagnosisCount);

}  // namespace

uint32_t ClcDiagnosisIndex(uint32_t code) {
  uint32_t i = 0;
  while (i < kClcDiagnosisCount && kRows[i].code != code) i++;
  return i;
}
uint32_t ClcDiagnosisAt(uint32_t index) {
  return index < kClcDiagnosisCount ? kRows[index].code : 0;
}
const char* ClcDiagnosisName(uint32_t code) {
  const uint32_t i = ClcDiagnosisIndex(code);
  return i < kClcDiagnosisCount ? kRows[i].name : "unknown";
}
const char* ClcDiagnosisText(uint32_t code) {
  const uint32_t i = ClcDiagnosisIndex(code);
  return i < kClcDiagnosisCount ? kRows[i].text
                                : "The other side gave a reason that is not known here.";
}

}  // namespace postern
