// SPDX-License-Identifier: Apache-2.0
// spare.cc - see spare.h.
#include "base/space/spare.h"

#include <sys/mman.h>

#include "base/atomic.h"
#include "base/sys.h"

namespace postern {
namespace {

uint8_t* spare_base = nullptr;  // (a)
size_t spare_given = 0;         // (a)

}  // namespace

void MakeSpare() {
  if (LoadAcquire(spare_base) != nullptr) return;  // [V4]
  const long r = sys::Call(SYS_mmap, 0L, kSpareBytes, static_cast<long>(PROT_NONE),
                           static_cast<long>(MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE), -1L, 0L);
  if (r < 0 && r > -4096) return;
  uint8_t* none = nullptr;
  auto* const made = reinterpret_cast<uint8_t*>(r);
  if (!CompareExchange(spare_base, none, made)) sys::Unmap(made, kSpareBytes);  // [V4]
}

bool GiveUpSpare(size_t bytes) {
  uint8_t* const base = LoadAcquire(spare_base);  // [V4]
  if (base == nullptr || bytes > kSpareBytes) return false;
  for (size_t given = LoadRelaxed(spare_given); given + bytes <= kSpareBytes;) {
    if (!CompareExchange(spare_given, given, given + bytes)) continue;
    sys::Unmap(base + given, bytes);
    return true;
  }
  return false;
}

}  // namespace postern
