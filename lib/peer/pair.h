// SPDX-License-Identifier: Apache-2.0
// pair.h - slots for connections in the link groups of two stacks.
#pragma once

#include "base/schema/reasons.h"
#include "family/family.h"

namespace postern {

struct ConnSlot {
  uint32_t lgr_idx, conn;
  uint8_t* lgr;  // mapped
};
// A slot in a link group in which we are the client of `stack`; posternd makes it if there is none
// with room, unless it may not be asked. The slot is taken: it is filled in, or given back
// (GiveConn).
enum class MayAsk : uint8_t { kNo, kYes };
Reason TakeConnSlot(Family& fam, const pstn_uuid& stack, ConnSlot& out,
                    MayAsk may_ask = MayAsk::kYes);
// Why posternd has not given what the connection needs, by its -errno.
Reason ReasonOf(const Family& fam, int error);
// How many link groups with it there are, and about how many slots of them are free.
uint32_t LinksKnown(Family& fam, const pstn_uuid& stack, uint32_t* free_slots = nullptr);

}  // namespace postern
