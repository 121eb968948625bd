// SPDX-License-Identifier: Apache-2.0
// clc_diagnosis.h - the diagnosis codes of CLC Decline messages, their names and what to do.
//
// The list is clc_diagnosis.def. A code comes from the peer, so every function takes any number.
// Thread-safe, constant data.
#pragma once
#include <cstdint>

namespace postern {

enum ClcDiagnosis : uint32_t {
#define PSTN_CLC_DIAGNOSIS(code, name, short_name, text) kClcDiag##name = code,
#include "wire/clc/clc_diagnosis.def"
#undef PSTN_CLC_DIAGNOSIS
};

// Position in the list; kClcDiagnosisCount for a code that is not in it. Counters of each role
// have kClcDiagnosisCount + 1 places.
uint32_t ClcDiagnosisIndex(uint32_t code);
enum ClcDiagnosisRow : uint32_t {
#define PSTN_CLC_DIAGNOSIS(code, name, short_name, text) kClcRow##name,
#include "wire/clc/clc_diagnosis.def"
#undef PSTN_CLC_DIAGNOSIS
  kClcDiagnosisCount
};
// The code at a position; 0 beyond the end.
uint32_t ClcDiagnosisAt(uint32_t index);

// "no-ueid"; "unknown" when there is no such code.
const char* ClcDiagnosisName(uint32_t code);
// What it means and what to do, in sentences.
const char* ClcDiagnosisText(uint32_t code);

}  // namespace postern
