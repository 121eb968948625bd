// directory.h - the table of listeners and local addresses that every client maps read-only.
// SPDX-License-Identifier: Apache-2.0
//
// posternd is the only writer; readers never wait. Each change happens between two increments of
// `seq` (odd while it lasts), and a reader that saw an odd or a changed number looks again. A
// reader may follow links that are being changed, so it bounds its steps and checks each index.
//
// The alive mutex is a robust pthread mutex that is locked once and never unlocked: when posternd
// ends, in whatever way, the kernel sets FUTEX_OWNER_DIED in its word. It belongs to the thread
// that called Create(), which has to be the one that ends last.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <tuple>
#include <vector>

#include "../kit/fd.h"
#include "abi/postern_abi.h"
#include "ctl/proto.h"

namespace postern::daemon {

struct Listener {
  pstn_uuid stack{};
  uint32_t ep_idx = 0, ep_gen = 0, backlog = 0;
  pstn_addr local{};
  uint32_t family = 0, v6only = 0;
  uint64_t netns_ino = 0, cookie = 0;
  bool shares_port = false;  // SO_REUSEPORT
  bool guests = false;       // of processes that have become another user (ADR 23)
  uid_t uid = 0;             // guests: that user
  bool foreign = false;      // of another user's posternd: known from the broker
  bool learnt = false;       // of another network namespace; `local` is how it is reached from ours
  pstn_addr source{};        // learnt: our address towards it
};

// stack, endpoint, generation
using ListenerKey = std::tuple<uint64_t, uint64_t, uint32_t, uint32_t>;
inline ListenerKey ListenerKeyOf(const Listener& l) {
  return {l.stack.hi, l.stack.lo, l.ep_idx, l.ep_gen};
}

// So many places are for listeners of others, and the rest for those of the directory's own user.
inline constexpr uint32_t kForeignMost = PSTN_DIR_LISTENERS / 4 * 3;
// ... and of those so many are for guests, of which one user gets no more than half of what is left
// free.
inline constexpr uint32_t kGuestsMost = PSTN_DIR_LISTENERS / 8;

// How listeners are told of between daemons and the broker.
ctl::Msg MessageOf(ctl::Type type, const Listener& listener);
Listener ListenerIn(const ctl::Msg& message);

class Directory {
 public:
  Directory() = default;
  ~Directory();
  Directory(const Directory&) = delete;
  Directory& operator=(const Directory&) = delete;

  // 0 or -errno.
  int Create(const pstn_uuid& id);
  // To be handed out; no process can write through it.
  SharedFd fd() const { return fd_; }
  const pstn_dir* map() const { return dir_; }

  // The same endpoint and generation again replaces the entry. A listener that shares no port is
  // the only one at its address, says the kernel: others that are listed there have ended, though
  // their family's death is not known yet, and are withdrawn. So is another endpoint of the same
  // guests' stack with the same socket. 0, or -ENOSPC.
  int Publish(const Listener& listener);
  // Whether there was one.
  bool Withdraw(const pstn_uuid& stack, uint32_t ep_idx, uint32_t ep_gen);
  template <typename Predicate>
  void WithdrawIf(Predicate&& gone) {
    std::vector<uint32_t> found;
    for (const auto& [entry, listener] : listeners_) {
      if (gone(listener)) found.push_back(entry);
    }
    Lose(found);
  }
  // Null: it is not here.
  const Listener* Find(const pstn_uuid& stack, uint32_t ep_idx, uint32_t ep_gen) const;
  std::vector<Listener> AtPort(uint16_t port) const;
  // seeks: others' listeners are here only for those ports that were sought, so that a process
  // that finds none asks first. No port was, from now on.
  void SetSeeks(bool seeks);
  void SetSought(uint16_t port);
  bool IsSought(uint16_t port) const;
  // Called for what WithdrawIf and Publish take out of our own listeners.
  std::function<void(const Listener&)> on_lost;
  // Called for what Publish enters, if it is not learnt.
  std::function<void(const Listener&)> on_listed;
  // Called for another user's that is out of the directory again, if it is not learnt, when its
  // stack has no other one of the same socket here.
  std::function<void(const Listener&)> on_foreign_gone;
  // Whether new connections may take a path through memory.
  void SetOpen(bool open);
  // As the broker has it; nothing when there is none.
  void SetHost(const pstn_host& host);
  // What does not fit is left out: connections to such an address go through the kernel.
  void SetAddresses(const std::vector<pstn_addr>& addresses);

  const std::map<uint32_t, Listener>& listeners() const { return listeners_; }

 private:
  class Change;  // seq is odd while one of these exists
  std::vector<uint32_t> EntriesAt(uint16_t port) const;
  void Lose(const std::vector<uint32_t>& entries);
  void WithdrawEnded(const Listener& by);
  // The word behind a port's last entry.
  uint32_t& EndOfChain(uint16_t port);
  uint32_t FindEntry(const pstn_uuid& stack, uint32_t ep_idx, uint32_t ep_gen) const;
  bool HasRoomFor(const Listener& guests) const;
  void Remove(uint32_t entry);
  void TellForeignGone(const Listener& gone) const;
  void Link(uint32_t entry, uint16_t port);
  void Unlink(uint32_t entry, uint16_t port);
  void Write(uint32_t entry, const Listener& listener);

  SharedFd fd_;
  pstn_dir* dir_ = nullptr;
  std::map<uint32_t, Listener> listeners_;  // by entry
  std::map<ListenerKey, uint32_t> entries_;
  std::set<uint16_t> sought_;
  uint32_t entry_hw_ = 0;
  uint32_t foreign_ = 0;  // listeners of others among them
  uint32_t guests_ = 0;
  std::map<uid_t, uint32_t> guests_of_;
  std::vector<uint32_t> free_entries_;
};

}  // namespace postern::daemon
