// SPDX-License-Identifier: Apache-2.0
// endpoint_state_test.cc - which state of an endpoint may follow which (lib/endpoint/state.h).
#include "endpoint/state.h"

#include "../kit/catch.h"

namespace postern {

TEST_CASE("an endpoint that is the kernel's stays so until it is free", "[endpoint]") {
  for (uint32_t to = PSTN_EP_FREE; to <= PSTN_EP_CONNECTING; to++)
    CHECK(MayFollow(PSTN_EP_KERNEL, to) == (to == PSTN_EP_KERNEL || to == PSTN_EP_FREE));
}

TEST_CASE("an endpoint may be freed in any state, and taken from none but that", "[endpoint]") {
  for (uint32_t state = PSTN_EP_FREE; state <= PSTN_EP_CONNECTING; state++) {
    CHECK(MayFollow(state, PSTN_EP_FREE));
    CHECK(MayFollow(PSTN_EP_FREE, state) == (state == PSTN_EP_NEW || state == PSTN_EP_FREE));
  }
}

TEST_CASE("an endpoint that is being taken apart gets no other state", "[endpoint]") {
  for (uint32_t to = PSTN_EP_NEW; to <= PSTN_EP_CONNECTING; to++)
    CHECK_FALSE(MayFollow(PSTN_EP_CLOSED, to));
}

TEST_CASE("a state that memory of a program may hold, and that is none, leads nowhere",
          "[endpoint]") {
  for (uint32_t to = PSTN_EP_NEW; to <= PSTN_EP_CONNECTING; to++) {
    CHECK_FALSE(MayFollow(8, to));
    CHECK_FALSE(MayFollow(UINT32_MAX, to));
  }
}

TEST_CASE("an endpoint is accepted from a queue only, connected from new or a handshake",
          "[endpoint]") {
  for (uint32_t from = PSTN_EP_FREE; from <= PSTN_EP_CONNECTING; from++)
    CHECK(MayFollow(from, PSTN_EP_ESTABLISHED) ==
          (from == PSTN_EP_NEW || from == PSTN_EP_EMBRYO || from == PSTN_EP_CONNECTING));
}

}  // namespace postern
