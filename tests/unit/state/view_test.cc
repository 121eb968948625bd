// SPDX-License-Identifier: Apache-2.0
// view_test.cc - link-group references of a stack and their mappings.
#include "state/view.h"

#include <initializer_list>
#include <memory>

#include "../kit/catch.h"
#include "../smcd/ring_pair.h"

namespace postern {
namespace {

TEST_CASE("view: references are found, freed, and come back clean") {
  RingWorld world;  // has two already
  StackMap& s = world.stack();
  for (uint32_t i = 2; i < s.lgrs.count(); i++)
    REQUIRE(AddLgrRef(s, i & 1u, NewUuid(), NewUuid()) == i);
  CHECK(AddLgrRef(s, 0, NewUuid(), NewUuid()) == PSTN_NONE);
  CHECK(s.hdr.lgrs_hw == s.lgrs.count());
  REQUIRE(TakeRing(s.lgrs.Own(LgrIndex(7)), 1) != 0);
  s.lgrs.Own(LgrIndex(7)).conn_ep[5] = 6;
  FreeLgrRef(s, 7);
  FreeLgrRef(s, s.lgrs.count());
  const pstn_uuid id = NewUuid();
  REQUIRE(AddLgrRef(s, 1, id, NewUuid()) == 7);
  CHECK(SameUuid(s.lgrs.Own(LgrIndex(7)).id, id));
  CHECK(s.lgrs.Own(LgrIndex(7)).side == 1);
  CHECK(s.lgrs.Own(LgrIndex(7)).rings == 0);
  CHECK(s.lgrs.Own(LgrIndex(7)).ring1_map[0] == 0);
  CHECK(s.lgrs.Own(LgrIndex(7)).conn_ep[5] == 0);
}

TEST_CASE("view: a mapping of another link group than the stack means is not used") {
  RingWorld world;
  auto view = std::make_unique<StackView>();
  view->s = &world.stack();
  const pstn_uuid id = world.stack().lgrs.Own(LgrIndex(0)).id, other = NewUuid();
  CHECK(LgrBase(*view, 0) == nullptr);
  CHECK(LgrBase(*view, world.stack().lgrs.count()) == nullptr);
  const int fd = CreateLgr(id, id, id), other_fd = CreateLgr(other, id, id);
  uint8_t* base = MapLgr(fd, &id);
  SetLgrMapping(*view, 0, base, fd);
  CHECK(LgrBase(*view, 0) == base);
  uint8_t* wrong = MapLgr(other_fd, &other);
  SetLgrMapping(*view, 0, wrong, other_fd);
  CHECK(LgrBase(*view, 0) == nullptr);
  CHECK(view->retired[0] == base);  // still mapped: a thread may look at it
  CHECK(LgrHdr(base).magic == PSTN_MAGIC_LGR);
  SetLgrMapping(*view, 0, MapLgr(fd, &id), fd);
  CHECK(LgrBase(*view, 0) != nullptr);
  DropLgrMapping(*view, 0);
  DropLgrMapping(*view, world.stack().lgrs.count());
  CHECK(LgrBase(*view, 0) == nullptr);
  sys::Close(fd);
  sys::Close(other_fd);
}

TEST_CASE("view: indices that the other side wrote stay inside the link group") {
  RingWorld world;
  uint8_t* const begin = world.lgr();
  for (const uint32_t idx : {0u, 511u, 512u, 4095u, 4096u, ~0u}) {
    for (const uint32_t side : {0u, 1u, 2u, ~0u}) {
      auto* map = reinterpret_cast<uint8_t*>(&LgrEvmap(begin, side, idx));
      CHECK(map >= begin + PSTN_LGR_EVMAP_OFF);
      CHECK(map + sizeof(pstn_evmap) <= begin + PSTN_LGR_CONN_OFF);
    }
    auto* conn = reinterpret_cast<uint8_t*>(&LgrConn(begin, idx));
    CHECK(conn >= begin + PSTN_LGR_CONN_OFF);
    CHECK(conn + sizeof(pstn_conn) <= begin + PSTN_LGR_SLAB_OFF);
  }
}

}  // namespace
}  // namespace postern
