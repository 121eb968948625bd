// SPDX-License-Identifier: Apache-2.0
// clc_fsm.h - the CLC handshake of one connection, both roles: a table of states and events.
//
// The machine does no I/O. It takes events and returns what to do; it is plain memory of fixed size
// without pointers, so it can live in the stack and any process of the family can take the next
// step. docs/protocols/smcd.md shows the table.
//
//   client                              server
//     Start -> Proposal                   Start
//     AwaitAccept        ---Proposal-->   AwaitProposal -> check, register
//                        <--Accept-----   ServerRegister -> Accept
//     check, register, attach             AwaitConfirm
//     Provisional        ---Confirm--->   check -> ServerAttach
//     SmcD               <~~acknowledge~  Acknowledge -> SmcD
//
// Either side may decline in place of its own next message ("no chase"). So the client is committed
// by its Confirm, and a server that can't attach then has nothing left but to reset the connection.
// Two Posterns agree (kClcAckAttach) on one message more: after Confirm the server either
// acknowledges, in shared memory, or sends a Decline. Until then the client may write, but keeps
// what it has written so that it could be sent by TCP instead.
//
// The acknowledgement is one word in the client's DMB that changes once: the server makes it
// "attached", or the client makes it "withdrawn", both by compare-and-swap, and the second sees
// that. This is what makes a time-out safe: a client that has waited long enough withdraws;
// either it learns that the server has attached, or the server will learn that it must not, and
// says so by a Decline, the last CLC message in the stream. Neither side can believe in SMC-D while
// the other is back on TCP.
//
// With a peer that agreed to nothing the client waits as long, for a FIN, RST or Decline instead of
// an acknowledgement: they mean that the server failed, and abort the connection. Silence is
// success: an idle peer has nothing to say.
//
// Rules for the caller, all under the lock of the connection:
//  - Actions are carried out in order, then ClcActed() is called. A step that finds the last one's
//    actions not reported aborts: their doer died, and no process knows which bytes went out.
//  - A message is read (wire/clc/clc.h says how) only while ClcWantsMessage(), and delivered before
//    the FIN or RST that came behind it.
//  - kTimer is delivered when ClcNextDeadline() has passed; earlier is harmless.
//  - Each of kRegister, kAttach, kAcknowledge, kWithdraw is answered by one DeviceOk or
//    DeviceFailed, at once or later, even after the end: what came too late is released then.
#pragma once
#include <cstdint>
#include <span>
#include <type_traits>

#include "smcd/clc_negotiate.h"

namespace postern {

constexpr uint64_t kClcMessageNs = 6'000'000'000;      // for the peer's next message
constexpr uint64_t kClcLateDeclineNs = 1'000'000'000;  // for a Decline that must be under way
// For our own device. Client: register and attach together leave two of the server's six seconds.
constexpr uint64_t kClcDeviceNs = 2'000'000'000;

// X(name, time until kTimer in ns; 0: waits for nothing)
#define PSTN_CLC_STATES(X)                                                          \
  X(ClientStart, 0)                                                                 \
  X(AwaitAccept, kClcMessageNs)      /* Proposal sent */                            \
  X(ClientRegister, kClcDeviceNs)    /* our DMB */                                  \
  X(ClientAttach, kClcDeviceNs)      /* the server's DMB */                         \
  X(Provisional, kClcMessageNs)      /* Confirm sent; there is a way back to TCP */ \
  X(WithdrawLate, kClcDeviceNs)      /* withdrawing, the server took too long */    \
  X(WithdrawClosed, kClcDeviceNs)    /* withdrawing, the server closed TCP */       \
  X(AwaitDecline, kClcLateDeclineNs) /* withdrawn: the server has to say so */      \
  X(ServerStart, 0)                                                                 \
  X(AwaitProposal, kClcMessageNs)                                                   \
  X(ServerRegister, kClcDeviceNs) /* our DMB */                                     \
  X(AwaitConfirm, kClcMessageNs)  /* Accept sent */                                 \
  X(ServerAttach, kClcDeviceNs)   /* the client's DMB */                            \
  X(Acknowledge, kClcDeviceNs)                                                      \
  X(SmcD, 0)                                                                        \
  X(Tcp, 0) /* fallen back */                                                       \
  X(Aborted, 0)

// clang-format off
#define PSTN_CLC_EVENTS(X)                                  \
  X(Start) X(Proposal) X(Accept) X(Confirm) X(Decline)      \
  X(Timer) X(PeerClosed) X(Reset) X(DeviceOk) X(DeviceFailed) X(Acknowledged)
// clang-format on

enum class ClcState : uint8_t {
#define PSTN_CLC_STATE(name, time_ns) k##name,
  PSTN_CLC_STATES(PSTN_CLC_STATE)
#undef PSTN_CLC_STATE
      kEnd
};
enum class ClcEventKind : uint8_t {
#define PSTN_CLC_EVENT(name) k##name,
  PSTN_CLC_EVENTS(PSTN_CLC_EVENT)
#undef PSTN_CLC_EVENT
      kEnd,
  kMessage  // whichever it is
};

// What the device says when it has registered a DMB.
struct ClcDmb {
  uint64_t token = 0;
  uint32_t link_id = 0;
  uint8_t size_code = 0;
  uint8_t has_link_group = 0;       // 1: there is one with this peer already
  uint8_t link_group_features = 0;  // what its first contact agreed on
};

struct ClcEvent {
  ClcEventKind kind = ClcEventKind::kTimer;
  uint32_t diagnosis = 0;                 // Start, DeviceFailed
  ClcDmb dmb = {};                        // DeviceOk
  std::span<const uint8_t> message = {};  // exactly one; read during the step only

  // With a diagnosis: don't do SMC for this connection, and tell the peer why at the first turn.
  static ClcEvent Start(uint32_t diagnosis = 0) {
    return {ClcEventKind::kStart, diagnosis, {}, {}};
  }
  static ClcEvent Message(std::span<const uint8_t> bytes) {
    return {ClcEventKind::kMessage, 0, {}, bytes};
  }
  static ClcEvent Timer() { return {ClcEventKind::kTimer, 0, {}, {}}; }
  static ClcEvent PeerClosed() { return {ClcEventKind::kPeerClosed, 0, {}, {}}; }
  static ClcEvent Reset() { return {ClcEventKind::kReset, 0, {}, {}}; }
  // `dmb` in answer to kRegister. For kWithdraw: withdrawn, the peer can't attach any more.
  static ClcEvent DeviceOk(const ClcDmb& dmb = {}) { return {ClcEventKind::kDeviceOk, 0, dmb, {}}; }
  // For kAcknowledge: the peer has withdrawn. For kWithdraw: the peer has attached.
  static ClcEvent DeviceFailed(uint32_t diagnosis = kClcDiagNoMemory) {
    return {ClcEventKind::kDeviceFailed, diagnosis, {}, {}};
  }
  // The word is "attached"; without kClcAckAttach: the peer has written to our DMB.
  static ClcEvent Acknowledged() { return {ClcEventKind::kAcknowledged, 0, {}, {}}; }
};

// The last action of each list says how it goes on: wait, a request to the device, or the end.
enum class ClcDo : uint8_t {
  kSend,             // `bytes`, on TCP
  kRelease,          // `release`: unregister own_token, detach peer_token
  kForgetLinkGroup,  // the two sides differ on what they have in common
  kRegister,         // a DMB of ours
  kAttach,           // to peer_token at the peer's device
  kAcknowledge,      // server: word "attached", if it is not "withdrawn"
  kWithdraw,         // client: word "withdrawn", if it is not "attached"; without kClcAckAttach:
                     // DeviceFailed if the peer has ever written to our DMB
  kWait,
  kSmcD,   // the end: data goes through the DMBs
  kTcp,    // the end: data goes by TCP; `diagnosis` of the machine says why
  kAbort,  // the end: reset the TCP connection; `abort` of the machine says why
};
constexpr uint8_t kClcHeldDmb = 1;
constexpr uint8_t kClcHeldAttach = 2;
constexpr uint32_t kClcActionsMax = 4;

struct ClcActions {
  uint8_t count;
  uint8_t release;  // kClcHeld*
  uint16_t len_bytes;
  ClcDo list[kClcActionsMax];
  uint8_t bytes[kClcMessageBytesMax];

  std::span<const uint8_t> message() const { return {bytes, len_bytes}; }
  ClcDo last() const { return count > 0 ? list[count - 1] : ClcDo::kWait; }
};

// One connection's handshake. Zero is no valid content: ClcInit(). All fields are (l: the
// connection's lock); the second group may be read after the end.
struct ClcMachine {
  uint64_t deadline_ns;       // UINT64_MAX: none
  uint8_t state;              // ClcState
  uint8_t acting;             // 1: what the last step asked for has not been reported as done
  uint8_t pending;            // ClcDo that the device has not answered, or 0
  uint8_t held;               // kClcHeld*: what is registered and attached
  uint8_t peer_version;       // 0: no message came yet
  uint8_t abort;              // ClcAbort
  uint8_t is_peer_diagnosis;  // 1: `diagnosis` is what the peer said, else our own
  uint8_t is_first_contact;   // as the Accept says

  uint64_t own_token, peer_token;
  uint64_t peer_gid, peer_gid_ext;
  uint32_t own_link_id, peer_link_id;
  uint32_t diagnosis;  // ClcDiagnosis: why not SMC-D
  uint16_t feature_mask;
  uint8_t own_size_code, peer_size_code;
  uint8_t release;
  uint8_t features;  // kClcAckAttach if agreed
  uint8_t zero[6];
  uint8_t eid[32];
};
static_assert(sizeof(ClcMachine) == 104);
static_assert(std::is_trivially_copyable_v<ClcMachine> && std::is_standard_layout_v<ClcMachine> &&
              std::has_unique_object_representations_v<ClcMachine>);

enum class ClcRole : uint8_t { kClient, kServer };
void ClcInit(ClcMachine& machine, ClcRole role);

// One event. `now_ns` is CLOCK_MONOTONIC, the same for all processes.
void ClcStep(ClcMachine& machine, const ClcLocal& local, const ClcEvent& event, uint64_t now_ns,
             ClcActions& actions);
// The actions of the last step are done.
void ClcActed(ClcMachine& machine);

inline uint64_t ClcNextDeadline(const ClcMachine& machine) { return machine.deadline_ns; }
inline ClcState ClcStateOf(const ClcMachine& machine) {
  return static_cast<ClcState>(machine.state);
}
// The next bytes on TCP are the peer's next message; else they are not to be touched.
bool ClcWantsMessage(const ClcMachine& machine);
// Data may be written to the peer's DMB. Provisional: it has to be kept until the end.
bool ClcMayWrite(const ClcMachine& machine);
bool ClcIsOver(const ClcMachine& machine);

// ---------------------------------------------------------------- the table, to be shown

const char* ClcStateName(ClcState state);
const char* ClcEventName(ClcEventKind event);
// What the table has for that cell: "Impossible", "Ignore", "Unexpected" or the name of a handler.
const char* ClcCellName(ClcState state, ClcEventKind event);
// Where a state may lead: bit n for state n.
uint32_t ClcEdges(ClcState state);

}  // namespace postern
