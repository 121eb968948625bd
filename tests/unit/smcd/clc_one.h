// SPDX-License-Identifier: Apache-2.0
// clc_one.h - one CLC machine against messages that a test writes, and machines in each state.
#pragma once
#include <functional>

#include "../kit/catch.h"
#include "clc_pair.h"

namespace postern {

inline constexpr uint64_t kNow = 5'000'000'000;

// One machine against messages that are written here.
class One {
 public:
  explicit One(ClcRole role, const ClcLocal& local = LoopbackLocal(0)) : local_(local) {
    ClcInit(m, role);
  }
  One& Do(const ClcEvent& event) {
    ClcStep(m, local_, event, now_ns, out);
    ClcActed(m);
    return *this;
  }
  One& Start(uint32_t diagnosis = 0) { return Do(ClcEvent::Start(diagnosis)); }
  One& Get(const std::vector<uint8_t>& bytes) { return Do(ClcEvent::Message(bytes)); }
  One& Get(const char* hex) { return Get(clc_vectors::BytesOfHex(hex)); }
  One& Late() {
    now_ns = ClcNextDeadline(m);
    return Do(ClcEvent::Timer());
  }
  One& Dmb(uint64_t token, uint32_t link_id, uint8_t known = 0, uint8_t features = 0) {
    return Do(ClcEvent::DeviceOk({token, link_id, 2, known, features}));
  }
  One& Ok() { return Do(ClcEvent::DeviceOk()); }
  One& Failed(uint32_t diagnosis = kClcDiagNoMemory) {
    return Do(ClcEvent::DeviceFailed(diagnosis));
  }

  ClcState state() const { return ClcStateOf(m); }
  ClcAbort abort() const { return static_cast<ClcAbort>(m.abort); }
  std::vector<uint8_t> sent() const {
    const auto bytes = out.message();
    return {bytes.begin(), bytes.end()};
  }
  // What the Decline that was sent last says; 0 if none was.
  uint32_t declined() const {
    ClcDecline d;
    const auto bytes = out.message();
    return bytes.size() > 4 && bytes[4] == 4 && ClcParseDecline(bytes, d).ok() ? d.diagnosis : 0;
  }
  bool did(ClcDo action) const {
    for (uint32_t i = 0; i < out.count; i++) {
      if (out.list[i] == action) return true;
    }
    return false;
  }

  ClcMachine m;
  ClcActions out = {};
  uint64_t now_ns = kNow;

 private:
  ClcLocal local_;
};

// States as far as the peer's messages take one.
inline One Waiting(ClcState state, uint8_t features = 0) {
  const ClcLocal local = LoopbackLocal(features);
  const bool is_client = state < ClcState::kServerStart;
  One one(is_client ? ClcRole::kClient : ClcRole::kServer, local);
  ClcPair pair(local, local);
  pair.Do({MoveKind::kStart, 0});
  pair.Do({MoveKind::kStart, 1});
  const std::vector<uint8_t> proposal = pair.end(1).incoming;
  pair.Do({MoveKind::kRead, 1});
  pair.Do({MoveKind::kDeviceOk, 1});
  const std::vector<uint8_t> accept = pair.end(0).incoming;
  pair.Do({MoveKind::kRead, 0});
  pair.Do({MoveKind::kDeviceOk, 0});
  pair.Do({MoveKind::kDeviceOk, 0});
  const std::vector<uint8_t> confirm = pair.end(1).incoming;
  const std::function<void()> steps[] = {
      [&] { one.Start(); },
      [&] { is_client ? one.Get(accept) : one.Get(proposal); },
      [&] { one.Dmb(is_client ? 0x1111 : 0x2222, 1); },
      [&] { is_client ? one.Ok() : one.Get(confirm); },
      [&] {
        if (!is_client) return void(one.Ok());
        state == ClcState::kWithdrawClosed ? one.Do(ClcEvent::PeerClosed()) : one.Late();
      },
      [&] { one.Ok(); },
  };
  for (const auto& step : steps) {
    if (one.state() == state) break;
    step();
  }
  REQUIRE(one.state() == state);
  return one;
}

}  // namespace postern
