// SPDX-License-Identifier: Apache-2.0
// clc_pair.h - a CLC client and a CLC server with the TCP connection, the devices and the word in
// shared memory between them, as values: a test can copy the world and try each continuation.
//
// Everything that can happen is a Move; Moves() lists those that can happen now. After each,
// Check() says what is broken. No Catch2 here: the fuzzer uses it.
#pragma once
#include <cstring>
#include <initializer_list>
#include <string>
#include <vector>

#include "clc_vectors.h"
#include "smcd/clc_fsm.h"

namespace postern {

inline ClcLocal LoopbackLocal(uint8_t features = kClcAckAttach) {
  ClcLocal local;
  local.gid = ClcGidFromUuid(clc_vectors::kUuid);
  local.features = features;
  local.ueid_count = 1;
  (void)ClcUeidFromText("POSTERN-TEST", local.ueids[0]);
  memset(local.host_name, ' ', sizeof local.host_name);
  memcpy(local.host_name, "(none)", 6);
  return local;
}

// One end: its machine, what its device still has to answer, what comes to it by TCP.
struct ClcEnd {
  ClcMachine machine;
  ClcLocal local;
  std::vector<uint8_t> incoming;
  uint32_t registered, attached;  // at the device
  ClcDo asked;                    // what the device has still to answer; kWait: nothing
  uint8_t fin, reset;             // behind `incoming`
  uint8_t gone;                   // this end's process is dead
  uint8_t spoke_last;             // its own message was the last one on the wire
  uint8_t app;                    // what its program has done since the end: 1 written, 2 closed
  uint8_t known_lgr_features;

  ClcState state() const { return ClcStateOf(machine); }
  bool is_over() const { return gone != 0 || ClcIsOver(machine); }
  // The path that the program believes it is on.
  bool thinks(ClcState end) const { return gone == 0 && state() == end; }
};

enum class MoveKind : uint8_t {
  kStart,
  kRead,
  kReadFin,
  kReadReset,
  kDeviceOk,
  kDeviceKnown,  // as kDeviceOk; the device knows a link group with the peer
  kDeviceFailed,
  kTimer,
  kAcknowledged,
  kWrite,  // the program, by TCP, after the machine has ended there
  kClose,  // the program, after the end: FIN
  kDie,
};
struct Move {
  MoveKind kind;
  uint8_t side;  // 0 client, 1 server
};
enum class Word : uint8_t { kOpen, kAttached, kWithdrawn };

class ClcPair {
 public:
  ClcPair(const ClcLocal& client, const ClcLocal& server, uint32_t client_refuses = 0,
          uint32_t server_refuses = 0)
      : refuses_{client_refuses, server_refuses} {
    ends_[0] = {{}, client, {}, 0, 0, ClcDo::kWait, 0, 0, 0, 0, 0, client.features};
    ends_[1] = {{}, server, {}, 0, 0, ClcDo::kWait, 0, 0, 0, 0, 0, server.features};
    ends_[0].known_lgr_features = ends_[1].known_lgr_features = client.features & server.features;
    ClcInit(ends_[0].machine, ClcRole::kClient);
    ClcInit(ends_[1].machine, ClcRole::kServer);
  }

  ClcEnd& end(size_t side) { return ends_[side]; }
  const ClcEnd& end(size_t side) const { return ends_[side]; }
  const std::string& broken() const { return broken_; }
  bool is_over() const { return ends_[0].is_over() && ends_[1].is_over(); }
  uint64_t now_ns = 1'000'000'000;
  // No: somebody has changed bytes or made up events. Then the two need not agree on anything, but
  // each still has to keep its own house in order.
  bool is_honest = true;

  std::vector<Move> Moves(bool with_death) const {
    std::vector<Move> moves;
    for (uint8_t side = 0; side < 2; side++) {
      const ClcEnd& e = ends_[side];
      if (e.gone != 0) continue;
      const auto add = [&](MoveKind kind) { moves.push_back({kind, side}); };
      if (e.asked != ClcDo::kWait) {
        add(MoveKind::kDeviceOk);
        if (e.asked == ClcDo::kRegister) add(MoveKind::kDeviceKnown);
        // The other two are decided by the word.
        if (e.asked == ClcDo::kRegister || e.asked == ClcDo::kAttach) add(MoveKind::kDeviceFailed);
      }
      if (e.thinks(ClcState::kTcp) && e.app == 0) add(MoveKind::kWrite);
      if ((e.thinks(ClcState::kTcp) || e.thinks(ClcState::kSmcD)) && e.app < 2)
        add(MoveKind::kClose);
      if (e.is_over()) continue;
      const bool starts =
          e.state() == ClcState::kClientStart || e.state() == ClcState::kServerStart;
      if (starts) add(MoveKind::kStart);
      if (with_death && !starts) add(MoveKind::kDie);
      if (starts) continue;
      add(MoveKind::kTimer);
      if (side == 0 && word_ == Word::kAttached && e.state() == ClcState::kProvisional)
        add(MoveKind::kAcknowledged);
      if (e.reset != 0) add(MoveKind::kReadReset);
      if (!e.incoming.empty() && ClcWantsMessage(e.machine)) add(MoveKind::kRead);
      if (e.incoming.empty() && e.fin != 0) add(MoveKind::kReadFin);
    }
    return moves;
  }

  void Do(Move move) {
    ClcEnd& e = ends_[move.side];
    switch (move.kind) {
      case MoveKind::kStart:
        return Deliver(move.side, ClcEvent::Start(refuses_[move.side]));
      case MoveKind::kRead:
        return Read(move.side);
      case MoveKind::kReadFin:
        e.fin = 0;
        return Deliver(move.side, ClcEvent::PeerClosed());
      case MoveKind::kReadReset:
        e.reset = 0;
        e.incoming.clear();
        return Deliver(move.side, ClcEvent::Reset());
      case MoveKind::kDeviceOk:
      case MoveKind::kDeviceKnown:
        return Answer(move.side, move.kind == MoveKind::kDeviceKnown);
      case MoveKind::kDeviceFailed:
        e.asked = ClcDo::kWait;
        return Deliver(move.side, ClcEvent::DeviceFailed(kClcDiagDmbLimit));
      case MoveKind::kTimer:
        if (now_ns < e.machine.deadline_ns) now_ns = e.machine.deadline_ns;
        return Deliver(move.side, ClcEvent::Timer());
      case MoveKind::kAcknowledged:
        return Deliver(move.side, ClcEvent::Acknowledged());
      case MoveKind::kWrite:
        e.app = 1;
        return SendTo(move.side ^ 1u, kAppBytes);
      case MoveKind::kClose:
        e.app = 2;
        ends_[move.side ^ 1u].fin = 1;
        return;
      case MoveKind::kDie:
        // Bytes that nobody will read make it an RST.
        (e.incoming.empty() ? ends_[move.side ^ 1u].fin : ends_[move.side ^ 1u].reset) = 1;
        e.gone = 1;
        e.incoming.clear();
        return;
    }
  }

  // One event to one side, its actions carried out, and what must hold afterwards.
  void Deliver(uint8_t side, const ClcEvent& event) {
    ClcEnd& e = ends_[side];
    if (event.kind == ClcEventKind::kMessage) e.spoke_last = 0;
    ClcStep(e.machine, e.local, event, now_ns, last_);
    for (uint32_t i = 0; i < last_.count; i++) Perform(side, last_.list[i]);
    ClcActed(e.machine);
    Check();
  }
  const ClcActions& last() const { return last_; }

  // Exactly one message: 8 bytes tell how long it is.
  void Read(uint8_t side) {
    ClcEnd& e = ends_[side];
    ClcHead head;
    size_t len_bytes = e.incoming.size();
    if (len_bytes >= kClcPeekBytes) {
      const std::span<const uint8_t> bytes(e.incoming);
      if (ClcPeek(bytes.first<kClcPeekBytes>(), head).ok() && head.len_bytes < len_bytes)
        len_bytes = head.len_bytes;
    }
    const std::vector<uint8_t> message(e.incoming.begin(),
                                       e.incoming.begin() + static_cast<ptrdiff_t>(len_bytes));
    e.incoming.erase(e.incoming.begin(), e.incoming.begin() + static_cast<ptrdiff_t>(len_bytes));
    if (is_honest && message[0] == kAppBytes[0])
      Break("a byte of the application was taken for CLC");
    Deliver(side, ClcEvent::Message(message));
  }

  // For a set of visited worlds: everything that decides how it goes on, and not the time.
  std::string Key() const {
    std::string key;
    for (const ClcEnd& e : ends_) {
      ClcMachine m = e.machine;
      m.deadline_ns = m.deadline_ns == UINT64_MAX ? 1 : 0;
      key.append(reinterpret_cast<const char*>(&m), sizeof m);
      key.append(reinterpret_cast<const char*>(e.incoming.data()), e.incoming.size());
      for (const uint32_t n :
           {e.registered, e.attached, uint32_t{e.fin}, uint32_t{e.reset}, uint32_t{e.gone},
            uint32_t{e.spoke_last}, uint32_t{e.app}, static_cast<uint32_t>(e.asked)})
        key.push_back(static_cast<char>(n));
    }
    key.push_back(static_cast<char>(word_));
    return key;
  }

 private:
  void Break(const char* what) {
    if (broken_.empty()) broken_ = what;
  }

  void Answer(uint8_t side, bool known) {
    ClcEnd& e = ends_[side];
    const ClcDo request = e.asked;
    e.asked = ClcDo::kWait;
    ClcDmb dmb;
    switch (request) {
      case ClcDo::kRegister:
        e.registered++;
        dmb = {side == 0 ? 0x1111u : 0x2222u, side + 1u, 2, known ? uint8_t{1} : uint8_t{0},
               e.known_lgr_features};
        break;
      case ClcDo::kAttach:
        e.attached++;
        break;
      case ClcDo::kAcknowledge:
        return Settle(side, Word::kAttached);
      default:
        return Settle(side, Word::kWithdrawn);
    }
    Deliver(side, ClcEvent::DeviceOk(dmb));
  }
  // Compare-and-swap: the first one wins.
  void Settle(uint8_t side, Word to) {
    if (word_ == Word::kOpen) word_ = to;
    Deliver(side, word_ == to ? ClcEvent::DeviceOk() : ClcEvent::DeviceFailed());
  }

  void SendTo(size_t side, std::span<const uint8_t> bytes) {
    ClcEnd& to = ends_[side];
    if (to.gone == 0 && to.reset == 0)
      to.incoming.insert(to.incoming.end(), bytes.begin(), bytes.end());
  }

  void Perform(uint8_t side, ClcDo action) {
    ClcEnd& e = ends_[side];
    ClcEnd& peer = ends_[side ^ 1u];
    switch (action) {
      case ClcDo::kSend: {
        const auto bytes = last_.message();
        if (bytes[4] == static_cast<uint8_t>(ClcType::kDecline) && e.spoke_last != 0)
          Break("a Decline that chases a message of the same side");
        e.spoke_last = 1;
        SendTo(side ^ 1u, bytes);
        break;
      }
      case ClcDo::kRelease:
        if ((last_.release & kClcHeldDmb) != 0) e.registered--;
        if ((last_.release & kClcHeldAttach) != 0) e.attached--;
        break;
      case ClcDo::kRegister:
      case ClcDo::kAttach:
      case ClcDo::kAcknowledge:
      case ClcDo::kWithdraw:
        if (e.asked != ClcDo::kWait) Break("two requests to the device at once");
        e.asked = action;
        break;
      case ClcDo::kAbort:
        // What is under way may be lost with it.
        if (!peer.is_over()) peer.reset = 1;
        break;
      default:
        break;
    }
  }

  void Check() {
    for (const ClcEnd& e : ends_) CheckEnd(e);
    if (!is_honest) return;
    const ClcEnd &c = ends_[0], &s = ends_[1];
    if ((c.thinks(ClcState::kSmcD) && s.thinks(ClcState::kTcp)) ||
        (s.thinks(ClcState::kSmcD) && c.thinks(ClcState::kTcp)))
      Break("one side is on SMC-D, the other on TCP");
    if (c.thinks(ClcState::kSmcD) && s.thinks(ClcState::kSmcD)) CheckAgreement();
    if (c.thinks(ClcState::kTcp) && s.thinks(ClcState::kTcp) &&
        !(IsApplications(c.incoming) && IsApplications(s.incoming)))
      Break("a CLC message is left in a stream that is the application's");
  }
  static bool IsApplications(const std::vector<uint8_t>& bytes) {
    return bytes.empty() || bytes[0] == kAppBytes[0];
  }
  void CheckEnd(const ClcEnd& e) {
    const ClcMachine& m = e.machine;
    const bool starts = e.state() == ClcState::kClientStart || e.state() == ClcState::kServerStart;
    if (!starts && (ClcNextDeadline(m) == UINT64_MAX) != ClcIsOver(m))
      Break("a deadline is missing, or too many");
    if (is_honest && (m.abort == static_cast<uint8_t>(ClcAbort::kInternal) ||
                      m.abort == static_cast<uint8_t>(ClcAbort::kInterrupted)))
      Break("an impossible event, or an edge that is not in the table");
    if (!ClcIsOver(m) || e.gone != 0 || e.asked != ClcDo::kWait) return;
    const uint32_t kept = e.state() == ClcState::kSmcD ? 1 : 0;
    if (e.registered != kept || e.attached != kept) Break("buffers lost, or given back twice");
    if (is_honest && e.state() == ClcState::kTcp && m.diagnosis == 0)
      Break("back on TCP for no reason");
  }
  void CheckAgreement() {
    const ClcMachine &c = ends_[0].machine, &s = ends_[1].machine;
    if (c.own_token != s.peer_token || s.own_token != c.peer_token) Break("tokens");
    if (memcmp(c.eid, s.eid, sizeof c.eid) != 0) Break("EIDs");
    if (c.features != s.features || c.is_first_contact != s.is_first_contact) Break("features");
    if (c.release != s.release && c.is_first_contact != 0) Break("releases");
  }

  static constexpr uint8_t kAppBytes[] = {'d', 'a', 't', 'a'};

  ClcEnd ends_[2];
  uint32_t refuses_[2];
  Word word_ = Word::kOpen;
  ClcActions last_ = {};
  std::string broken_;
};

}  // namespace postern
