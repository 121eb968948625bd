// SPDX-License-Identifier: Apache-2.0
// corked.h - what MSG_MORE and TCP_CORK hold back of a send (smcd/hold.h has how).
#pragma once
#include "endpoint/endpoint.h"
#include "smcd/ring.h"

namespace postern {

// kMore: by this call's flag alone. Whatever the peer sends, an acknowledgement of a part of this
// send too, has the kernel send what is held back so.
enum class Corked : uint8_t { kNo, kMore, kCork };
inline Corked CorkedBy(const pstn_ep& ep, int flags) {
  if (((LoadRelaxed(ep.flags) & PSTN_EPF_CORK) == 0 && (flags & MSG_MORE) == 0) ||
      (flags & MSG_OOB) != 0)
    return Corked::kNo;
  return (LoadRelaxed(ep.flags) & PSTN_EPF_CORK) != 0 ? Corked::kCork : Corked::kMore;
}

struct CorkedWrite {
  RingLimits limits;
  Growth growth;
  Corked corked;
  bool ends_record;  // MSG_EOR
};
// Of what the peer is to be told (smcd/notify.h): kData if bytes were written, else of these.
enum Told : uint32_t { kNothing = 0, kSent = 1, kHold = 2, kData = 4 };

// As RingWrite, where something is to be held back, or is already. Whether it can be read, `told`
// says.
size_t WriteCorked(const ConnEnd& e, IovCursor& from, const CorkedWrite& how, uint32_t& told)
    PSTN_REQUIRES(e.ep->tx.lock);

}  // namespace postern
