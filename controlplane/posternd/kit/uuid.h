// uuid.h - comparing and printing ids.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdio>
#include <string>

#include "abi/postern_abi.h"

namespace postern::daemon {

inline bool Same(const pstn_uuid& a, const pstn_uuid& b) { return a.hi == b.hi && a.lo == b.lo; }

struct UuidLess {
  bool operator()(const pstn_uuid& a, const pstn_uuid& b) const {
    return a.hi != b.hi ? a.hi < b.hi : a.lo < b.lo;
  }
};

inline std::string Text(const pstn_uuid& id) {
  char text[40];
  snprintf(text, sizeof(text), "%016llx%016llx", static_cast<unsigned long long>(id.hi),
           static_cast<unsigned long long>(id.lo));
  return text;
}

}  // namespace postern::daemon
