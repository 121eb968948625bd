// SPDX-License-Identifier: Apache-2.0
// wire.h - connections whose peer is behind a VI: the engine is the other end of their rings.
//
// The program's end is an endpoint like any other; so is the engine's (PSTN_EPF_ENGINE), but no
// descriptor means it. Both are connected through one of the link groups that the stack has with
// itself. docs/adr/0010; what happens in which call: docs/architecture.md, "Walk: a packet".
#pragma once
#include "ctl/proto.h"
#include "family/family.h"
#include "family/verbs.h"
#include "stack/engine.h"

namespace postern {

// The engine's view of the program's ends.
class RingStreams final : public stack::Streams {
 public:
  explicit RingStreams(Family& fam) : fam_(fam) {}
  tcp::Cursor Begin(stack::Conn& c) override;
  uint32_t Available(stack::Conn& c, const tcp::Cursor& at, uint32_t limit) override;
  tcp::Cursor Skip(stack::Conn& c, const tcp::Cursor& at, uint32_t bytes) override;
  bool Copy(stack::Conn& c, tcp::Cursor& at, uint32_t bytes, uint8_t* to,
            wire::Checksummer& sum) override;
  void Release(stack::Conn& c, uint32_t bytes) override;
  bool MoreFollows(stack::Conn& c, uint32_t ahead) override;
  bool Ended(stack::Conn& c) override;
  uint32_t Room(stack::Conn& c) override;
  uint32_t RoomMax(stack::Conn& c) override;
  uint32_t Deliver(stack::Conn& c, const uint8_t* data, uint32_t bytes) override;
  uint32_t DeliverRun(stack::Conn& c, const tcp::SegmentIn& run, uint32_t skip,
                      uint32_t bytes) override;
  void Report(stack::Conn& c, tcp::Event event, int error) override;
  uint32_t Look(stack::Conn& c) override;
  bool Accept(stack::Conn& c, uint32_t idx, const stack::Listener& l) override;
  bool MayAccept(const stack::Listener& l) override;
  bool Listens(const stack::Listener& l) override;
  uint32_t DeferSeconds(const stack::Listener& l) override;
  void Collect(stack::Engine& engine) override;
  bool HasNews() override;
  bool Reaches() override;
  void DatagramCame(const stack::DatagramSocket& s) override;
  void DatagramsLeave(stack::DatagramSocket& s) override;

 private:
  uint32_t Write(stack::Conn& c, const iovec* iov, uint32_t count);
  const pstn_ep* ListenerOf(const stack::Conn& c) const;  // of a handshake; null: it has gone

  Family& fam_;
};

// From now on the wire is Family::engine; Family::wire_on follows.
void WireUse(Family& fam, stack::Engine* engine);
// What family/turn.h asks for. WirePoll looks for packets, timers and news, if no thread is at
// it. How much there was.
uint32_t WirePoll(Family& fam);
bool WireWroteOne(Family& fam);
long WireCountEvents(Family& fam, long count);
void WireSleeps(Family& fam);
void WireAwake(Family& fam);
// Tells posternd what came up under the engine's lock, without a wait (wire_errands.cc).
void WireErrands(Family& fam);
// ctl.rcv_room of the engine's ends. The program's bytes leave its ring when they are acknowledged,
// so there is no buffer besides it; but the kernel fills a last segment of this size while its send
// buffer has room for one byte of it.
inline constexpr uint32_t kLastSegmentBytes = 65536;
// wire_attach.cc. Makes the stack's wire, or joins it. False: the kernel does it all.
// `patience_ns`: so long the interface's queues may be those of a stack that is just ending (a
// server that is restarted).
bool WireStart(Family& fam, uint64_t patience_ns = 0);
// Enough for the keeper of a program that has ended to leave.
inline constexpr uint64_t kTakenNs = 1'000'000'000;
void WireForget(Family& fam);  // a process of one thread leaves the stack
void WireRetry(Family& fam);   // there is a reason to try again at once
// wire_settings.cc
void WireReadSettings(stack::WireSettings& settings);
// What has changed since, once in a second; some system calls. Not under a lock.
void WireFollowSettings(stack::Engine& engine, uint64_t now);
// tcp_fastopen, as it is now.
uint32_t WireFastOpen();
// CtlAsk() as a LineAsk, with no limit (wire_filter.cc).
int AskNow(Family& fam, ctl::Msg& m, int fd, int* reply_fd);
// After a posternd has come anew (LineAsk).
int WireReintroduce(Family& fam, LineAsk ask);  // the VIs: 0 or -errno
const pstn_routes* WireTables(Family& fam);
uint32_t WireViOn(Family& fam, uint32_t ifindex);  // kAreaVis: none
// The keeper's way in; `bundle` is taken. 0 or -errno.
int WireAdopt(Family& fam, int bundle);

// ---- wire_filter.cc
// Steers what comes by VI `vi` for the name that the kernel's socket is bound to, to us. 0 or
// -errno.
int WireFilter(Family& fam, int fd, uint32_t vi, uint32_t* number);
// The same for one connection.
int WireFilterPeer(Family& fam, int fd, uint32_t vi, const pstn_addr& local, const pstn_addr& peer,
                   uint32_t* number);
// The same for a UDP socket; `peer` null: from any. Fragments are the kernel's, which puts them
// together for its socket.
int WireFilterDatagrams(Family& fam, int fd, uint32_t vi, const pstn_addr& local,
                        const pstn_addr* peer, uint32_t* number, LineAsk ask = nullptr);
enum class Unfilter : uint8_t {
  kNow,
  kLater,  // under the engine's lock: an errand
  kHush,   // its socket listens no more; the filter stays
  kLeave,  // the same, but others have the socket now, and go on
};
void WireUnfilter(Family& fam, uint32_t vi, uint32_t number, Unfilter how);
// Of a connection that is bound to its port, posternd keeps the kernel's socket with the filter. It
// is to keep another one: `fd` is a stranger's, which wants to see it closed.
void WireRehouse(Family& fam, int fd, const pstn_ep& ep);
// What is steered to that endpoint, for a new posternd.
void WireRefilter(Family& fam, LineAsk ask, int fd, const pstn_ep& ep);

// This process never waits for posternd because of a filter: it is the keeper, which all wait for.
void WireNeverWaits(Family& fam);

// ---- wire_ports.cc: ports that connections are made from (stack/source_ports.h)
// One more. False: posternd has none for us, or there are enough.
bool WireNewPort(Family& fam, uint32_t vi, const pstn_addr& at);
// Gives it back, so that a program can bind it. False: it is none of ours, or in use.
bool WireGivePort(Family& fam, uint16_t port);
void WireSweepPorts(Family& fam);              // gives back what was not needed for a while
void WireKeepPorts(Family& fam, LineAsk ask);  // for a new posternd

// ---- wire.cc
// Gives up listeners whose program is gone without a word.
void WireSweep(Family& fam);
// The engine's doorbell, for its keeper: fd or -errno.
int WireBell(Family& fam);

// ---- wire_errands.cc
// Lets go of the engine's lock; what came up under it is sent. Poll() is followed by WireErrands().
inline void WireRelease(Family& fam, stack::Engine& engine) PSTN_RELEASE(engine) {
  engine.Release();
  WireErrands(fam);
}

// ---- wire_connect.cc
void WireConnected(Family& fam, pstn_ep& program, pstn_conn& conn, int error);

// The link group `idx` of the stack with itself, as its other side has it.
uint32_t OtherSide(Family& fam, uint32_t idx);
// The other end of connection `conn` of link group `idx`, if it goes through a VI; else null.
const pstn_ep* EngineEnd(Family& fam, uint32_t idx, uint32_t conn);

// listen() and its end. What can't be had on the wire is served by the kernel alone.
void WireListen(Family& fam, int fd, pstn_ep& ep);
// The same for one that has found the interface taken, in the middle of the program's calls.
void WireListenAgain(Family& fam, int fd, pstn_ep& ep);
// kHush, or kLeave.
void WireUnlisten(Family& fam, pstn_ep& ep, Unfilter how = Unfilter::kHush);

}  // namespace postern
