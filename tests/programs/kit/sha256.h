// sha256.h - SHA-256 (FIPS 180-4), with the processor's SHA instructions where there are any.
// SPDX-License-Identifier: Apache-2.0
//
// A state is plain data, so that two processes can carry one digest on in turns in shared memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace xfer {

struct Sha256 {
  uint32_t h[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                   0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  uint8_t partial[64] = {};
  uint64_t length = 0;  // bytes so far

  void Update(const void* data, size_t bytes);
  std::string Hex() const;  // of what came so far; the state stays usable
};

}  // namespace xfer
