// negotiator.cc - see negotiator.h.
// SPDX-License-Identifier: Apache-2.0
#include "negotiator.h"
#include "../kit/log.h"
#include "../registry/slot_copy.h"
#include "base/atomic.h"
#include "base/clock.h"
#include "family/family.h"
#include "peer/negotiate.h"
#include "smcd/clc_local.h"
#include "talk_socket.h"

#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace postern::daemon {
namespace {

constexpr uint8_t kEyecatcher[4] = {0xe2, 0xd4, 0xc3, 0xd9};
constexpr uint8_t kSizeCode = 2;  // 64 KiB; a ring has no fixed size
constexpr uint64_t kMsNs = 1'000'000;

uint32_t DiagnosisOf(int status) {
  switch (status) {
    case EPERM:
      return kClcDiagConfig;
    case ENOSPC:
      return kClcDiagDmbLimit;
    default:
      return kClcDiagNoMemory;
  }
}

bool IsTcp(int fd) {
  int protocol = 0;
  socklen_t size = sizeof(protocol);
  return getsockopt(fd, SOL_SOCKET, SO_PROTOCOL, &protocol, &size) == 0 && protocol == IPPROTO_TCP;
}

bool HasEnded(int fd) {
  pollfd p{fd, POLLRDHUP, 0};
  return poll(&p, 1, 0) == 1 && (p.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

}  // namespace

struct Negotiator::Talk {
  Talk(event_base* base, UniqueFd fd, uid_t whose, Negotiator& owner)
      : socket(std::move(fd), whose),
        readable(base, socket.get(), static_cast<short>(EV_READ | EV_PERSIST),
                 [this, &owner] { owner.Readable(*this); }),
        timer(base, -1, 0, [this, &owner] { owner.Step(*this, ClcEvent::Timer()); }) {}

  uint64_t id = 0;
  pstn_uuid stack{};
  uint32_t ep_idx = 0, ep_gen = 0;
  TalkSocket socket;
  ClcMachine machine{};
  pstn_uuid link{};  // as attached
  uint32_t conn = 0, conn_gen = 0;
  bool over = false, heard = false;
  Event readable, timer;
};

Negotiator::Negotiator(event_base* base, Registry& registry, Upstream& upstream)
    : base_(base), registry_(registry), upstream_(upstream) {}

Negotiator::~Negotiator() = default;

void Negotiator::SetHost(const pstn_host& host) { local_ = ClcLocalOf(host); }

void Negotiator::Take(const pstn_uuid& stack, uint32_t ep_idx, uint32_t ep_gen, UniqueFd socket) {
  // What is none may take its time for the simplest question.
  if (!IsTcp(socket.get())) return;
  const Stack* const of = registry_.Find(stack);
  if (of == nullptr || (IsGuests(*of) && !HasRoomForGuest(of->uid))) return;
  auto fresh = std::make_unique<Talk>(base_, std::move(socket), of->uid, *this);
  Talk& talk = *fresh;
  talk.id = next_++;
  talk.stack = stack;
  talk.ep_idx = ep_idx;
  talk.ep_gen = ep_gen;
  talks_[talk.id] = std::move(fresh);
  const Key key{stack.hi, stack.lo, ep_idx, ep_gen};
  waiting_[key].talks++;
  Publish(key);
  ClcInit(talk.machine, ClcRole::kServer);
  Step(talk, ClcEvent::Start());
}

bool Negotiator::HasRoomForGuest(uid_t uid) const {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return false;
  size_t of_user = 0, of_all = 0;
  const auto count = [&](const pstn_uuid& id, size_t kept) {
    const Stack* const stack = registry_.Find(id);
    if (stack == nullptr || !IsGuests(*stack)) return;
    of_all += kept;
    of_user += stack->uid == uid ? kept : 0;
  };
  for (const auto& [id, talk] : talks_) count(talk->stack, 1);
  for (const auto& [key, waiting] : waiting_)
    count({std::get<0>(key), std::get<1>(key)}, waiting.held.size());
  return of_user < limit.rlim_cur / 8 && of_all < limit.rlim_cur / 4;
}

// ---- one step of the machine, and what it asks for

void Negotiator::Step(Talk& talk, const ClcEvent& event) {
  ClcActions actions;
  ClcStep(talk.machine, local_, event, MonotonicNs(), actions);
  Do(talk, actions);
}

void Negotiator::Do(Talk& talk, const ClcActions& actions) {
  const ClcDo last = actions.last();
  bool sent = true;
  for (uint32_t i = 0; i < actions.count; ++i) {
    if (actions.list[i] == ClcDo::kSend) {
      const auto bytes = actions.message();
      // The first bytes on a new connection: they fit, or it has ended.
      sent = talk.socket.Send({bytes.data(), bytes.size()}) == static_cast<ssize_t>(bytes.size());
    } else if (actions.list[i] == ClcDo::kRelease && (actions.release & kClcHeldDmb) != 0) {
      upstream_.Release(talk.machine.own_token);
    }
  }
  ClcActed(talk.machine);
  if (!sent && !ClcIsOver(talk.machine)) return Step(talk, ClcEvent::Reset());
  if (last == ClcDo::kSmcD || last == ClcDo::kTcp || last == ClcDo::kAbort)
    return Finish(talk, sent ? last : ClcDo::kAbort);
  const uint64_t now = MonotonicNs(), deadline = ClcNextDeadline(talk.machine);
  if (deadline != UINT64_MAX)
    talk.timer.AddMs(deadline > now ? static_cast<uint32_t>((deadline - now) / kMsNs) + 1 : 0);
  if (ClcWantsMessage(talk.machine)) {
    talk.readable.Add();
  } else {
    talk.readable.Del();
  }
  if (last != ClcDo::kWait) Request(talk, last);
}

void Negotiator::Request(Talk& talk, ClcDo what) {
  if (what == ClcDo::kRegister) return Register(talk);
  if (what == ClcDo::kAttach) return Attach(talk);
  if (what == ClcDo::kAcknowledge) return Acknowledge(talk);
}

Asks::Done Negotiator::Later(const Talk& talk,
                             void (Negotiator::*then)(Talk&, int, const ctl::Msg&)) {
  return [this, id = talk.id, then](int status, const ctl::Msg& answer, UniqueFd) {
    const auto it = talks_.find(id);
    if (it != talks_.end() && !it->second->over) return (this->*then)(*it->second, status, answer);
    if (status != 0 || then != &Negotiator::Registered) return;
    upstream_.Release(answer.cookie);  // no client waits for it any more
  };
}

void Negotiator::Register(Talk& talk) {
  ctl::Msg message;
  message.type = ctl::Type::kRegister;
  message.uuid = talk.stack;
  message.a = talk.ep_idx;
  message.b = talk.ep_gen;
  message.c = registry_.BacklogOf(talk.stack, talk.ep_idx, talk.ep_gen);
  upstream_.Ask(message, Later(talk, &Negotiator::Registered));
}

void Negotiator::Registered(Talk& talk, int status, const ctl::Msg& answer) {
  if (status != 0) return Step(talk, ClcEvent::DeviceFailed(DiagnosisOf(status)));
  ClcDmb dmb;
  dmb.token = answer.cookie;
  dmb.link_id = static_cast<uint32_t>(talk.id);
  dmb.size_code = kSizeCode;
  Step(talk, ClcEvent::DeviceOk(dmb));
}

// What the client has registered is a connection of a link group with the listener's stack, which
// by now both daemons have.
void Negotiator::Attach(Talk& talk) {
  ctl::Msg message;
  message.type = ctl::Type::kAttach;
  message.cookie = talk.machine.peer_token;
  message.uuid = talk.stack;
  upstream_.Ask(message, Later(talk, &Negotiator::Attached));
}

void Negotiator::Attached(Talk& talk, int status, const ctl::Msg& answer) {
  if (status != 0) return Step(talk, ClcEvent::DeviceFailed(DiagnosisOf(status)));
  talk.link = answer.id;
  talk.conn = answer.a;
  talk.conn_gen = answer.b;
  Step(talk, ClcEvent::DeviceOk());
}

void Negotiator::Acknowledge(Talk& talk) {
  Stack* const stack = registry_.Find(talk.stack);
  const auto link = registry_.links().find(talk.link);
  ctl::Msg offer;
  pstn_addr server, client;
  if (stack == nullptr || link == registry_.links().end() || link->second->end[1].stack != stack ||
      talk.conn >= PSTN_CONNS || !talk.socket.Names(server, client))
    return Step(talk, ClcEvent::DeviceFailed());
  offer.b = talk.conn;
  offer.c = talk.conn_gen;
  offer.uuid = {talk.ep_idx, talk.ep_gen};
  offer.addr = server;
  ctl::SetJobClient(offer, client);
  registry_.AdmitOffer(*stack, *link->second, offer,
                       [this, id = talk.id, server](int status, bool translated) {
                         const auto it = talks_.find(id);
                         if (it == talks_.end() || it->second->over) return;
                         Acknowledged(*it->second, status, translated, server);
                       });
}

void Negotiator::Acknowledged(Talk& talk, int status, bool translated, const pstn_addr& server) {
  const auto link = registry_.links().find(talk.link);
  if (status != 0 || link == registry_.links().end()) return Step(talk, ClcEvent::DeviceFailed());
  if (!translated) {
    ctl::Msg message;
    message.type = ctl::Type::kLearn;
    message.uuid = talk.stack;
    message.peer = link->second->owner[0];
    message.a = talk.ep_idx;
    message.b = talk.ep_gen;
    message.addr = server;
    upstream_.Send(message);
  }
  Step(talk, ClcEvent::DeviceOk());
}

// ---- bytes

void Negotiator::Readable(Talk& talk) {
  if (talk.over) {  // beside SMC-D nothing comes but its end
    uint8_t byte;
    const ssize_t n = talk.socket.Receive({&byte, 1}, 0);
    if (n >= 0 || (errno != EAGAIN && errno != EINTR)) Erase(talk);
    return;
  }
  while (!talk.over && ClcWantsMessage(talk.machine)) {
    if (!ReadMessage(talk)) return;
  }
}

// False: no whole message is there yet, or the talk is gone.
bool Negotiator::ReadMessage(Talk& talk) {
  uint8_t bytes[kClcMessageBytesMax];
  ssize_t n = talk.socket.Receive(bytes, MSG_PEEK);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  if (n <= 0) {
    Step(talk, n == 0 ? ClcEvent::PeerClosed() : ClcEvent::Reset());
    return false;
  }
  const size_t have = static_cast<size_t>(n);
  // The client has not seen our option (something on the way took it out): its program's bytes.
  const size_t known = have < sizeof(kEyecatcher) ? have : sizeof(kEyecatcher);
  if (!talk.heard && memcmp(bytes, kEyecatcher, known) != 0) {
    Finish(talk, ClcDo::kTcp);
    return false;
  }
  size_t want = kClcPeekBytes;
  ClcHead head;
  if (have >= want) {
    const bool sound =
        ClcPeek(std::span<const uint8_t, kClcPeekBytes>(bytes, kClcPeekBytes), head).ok();
    want = sound ? head.len_bytes : kClcPeekBytes;
  }
  talk.socket.WakeAt(static_cast<int>(want));
  if (have < want) {
    // An end behind half a message wakes us again and again. All data is there when it is seen.
    if (!HasEnded(talk.socket.get())) return false;
    n = talk.socket.Receive({bytes, want}, MSG_PEEK);
    if (n >= static_cast<ssize_t>(want)) return true;
    Step(talk, ClcEvent::PeerClosed());
    return false;
  }
  n = talk.socket.Receive({bytes, want}, 0);
  if (n != static_cast<ssize_t>(want)) return false;
  talk.heard = true;
  talk.socket.WakeAt(kClcPeekBytes);
  const uint64_t id = talk.id;
  Step(talk, ClcEvent::Message({bytes, want}));
  return talks_.count(id) != 0;
}

// ---- ends

void Negotiator::Finish(Talk& talk, ClcDo how) {
  const Key key{talk.stack.hi, talk.stack.lo, talk.ep_idx, talk.ep_gen};
  Note("handshake %llu: %s, %s %08x", static_cast<unsigned long long>(talk.id),
       how == ClcDo::kSmcD  ? "SMC-D"
       : how == ClcDo::kTcp ? "TCP"
                            : "aborted",
       ClcAbortName(static_cast<ClcAbort>(talk.machine.abort)), talk.machine.diagnosis);
  talk.over = true;
  talk.timer.Del();
  const auto waiting = waiting_.find(key);
  if (waiting != waiting_.end() && waiting->second.talks != 0) waiting->second.talks--;
  talk.socket.WakeAt(1);
  if (how == ClcDo::kSmcD) {
    talk.readable.Add();
    return Publish(key);
  }
  talk.readable.Del();
  if (how == ClcDo::kTcp && waiting != waiting_.end()) {
    waiting->second.held.push_back(talk.socket.Take());
    Publish(key);
  } else {
    talk.socket.ResetAtEnd();
    Publish(key);
  }
  Erase(talk);
}

void Negotiator::Erase(Talk& talk) { talks_.erase(talk.id); }

// What the processes may know of it without asking.
void Negotiator::Publish(const Key& key) {
  const auto it = waiting_.find(key);
  if (it == waiting_.end()) return;
  const uint32_t held = static_cast<uint32_t>(it->second.held.size());
  registry_.StoreHeld({std::get<0>(key), std::get<1>(key)}, std::get<2>(key), std::get<3>(key),
                      held, it->second.talks);
  if (held == 0 && it->second.talks == 0) waiting_.erase(it);
}

SharedFd Negotiator::TakeHeld(const pstn_uuid& stack, uint32_t ep_idx, uint32_t ep_gen) {
  const Key key{stack.hi, stack.lo, ep_idx, ep_gen};
  const auto it = waiting_.find(key);
  if (it == waiting_.end() || it->second.held.empty()) return {};
  SharedFd first = std::move(it->second.held.front());
  it->second.held.erase(it->second.held.begin());
  Publish(key);
  return first;
}

void Negotiator::PutBackHeld(const pstn_uuid& stack, uint32_t ep_idx, uint32_t ep_gen,
                             SharedFd socket) {
  const Key key{stack.hi, stack.lo, ep_idx, ep_gen};
  auto& held = waiting_[key].held;
  held.insert(held.begin(), std::move(socket));
  Publish(key);
}

void Negotiator::ListenerHere(const pstn_uuid& stack, uint32_t ep_idx, uint32_t ep_gen) {
  const Key key{stack.hi, stack.lo, ep_idx, ep_gen};
  if (waiting_.count(key) != 0) return Publish(key);
  registry_.StoreHeld(stack, ep_idx, ep_gen, 0, 0);
}

void Negotiator::ListenerGone(const pstn_uuid& stack, uint32_t ep_idx, uint32_t ep_gen) {
  const Key key{stack.hi, stack.lo, ep_idx, ep_gen};
  waiting_.erase(key);
  for (auto it = talks_.begin(); it != talks_.end();) {
    Talk& talk = *it->second;
    ++it;
    if (!talk.over && Key{talk.stack.hi, talk.stack.lo, talk.ep_idx, talk.ep_gen} == key)
      Finish(talk, ClcDo::kAbort);
  }
}

void Negotiator::StacksChanged() {
  for (auto it = talks_.begin(); it != talks_.end();) {
    Talk& talk = *it->second;
    ++it;
    if (registry_.Find(talk.stack) == nullptr) Erase(talk);
  }
  for (auto it = waiting_.begin(); it != waiting_.end();) {
    const pstn_uuid stack = {std::get<0>(it->first), std::get<1>(it->first)};
    it = registry_.Find(stack) == nullptr ? waiting_.erase(it) : std::next(it);
  }
}

}  // namespace postern::daemon
