// directory.cc - writing the directory.
// SPDX-License-Identifier: Apache-2.0
#include "directory.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <fstream>

#include "../kit/log.h"
#include "base/atomic.h"
#include "base/ip_address.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

namespace postern::daemon {
namespace {

// Readers look at the first word of alive_mutex: it has to be the one that the kernel marks.
static_assert(sizeof(pthread_mutex_t) <= sizeof(pstn_dir::alive_mutex));
static_assert(offsetof(pthread_mutex_t, __data.__lock) == 0);
static_assert(sizeof(pthread_mutex_t::__data.__lock) == sizeof(uint32_t));

bool IsWildcard(const Listener& l) { return IpOf(l.local) == IpAddress{}; }

// Which of the two families' connections it takes: 1 for IPv4, 2 for IPv6.
unsigned Takes(const Listener& l) {
  if (l.family == AF_INET) return 1;
  if (IsWildcard(l)) return l.v6only != 0 ? 2 : 3;
  return AddrIsV4(l.local) ? 1 : 2;
}

// Whether the kernel would refuse two sockets to listen there.
bool SamePlace(const Listener& a, const Listener& b) {
  if (a.local.port != b.local.port || a.netns_ino != b.netns_ino || a.learnt != b.learnt ||
      (Takes(a) & Takes(b)) == 0)
    return false;
  return IsWildcard(a) || IsWildcard(b) ||
         (memcmp(a.local.ip, b.local.ip, sizeof(a.local.ip)) == 0 &&
          a.local.scope == b.local.scope);
}

// Of the words of a chain: not its end.
bool IsEntry(uint32_t next) { return next != 0 && next <= PSTN_DIR_LISTENERS; }

bool IsOf(const Listener& l, const pstn_uuid& stack) {
  return l.stack.hi == stack.hi && l.stack.lo == stack.lo;
}

constexpr uint32_t kOwnerDied = 0x40000000;  // FUTEX_OWNER_DIED

uint32_t PortLow() {
  std::ifstream file("/proc/sys/net/ipv4/ip_local_port_range");
  uint32_t low = 0;
  file >> low;
  return low <= 65535 ? low : 0;
}

int LockForLife(void* place) {
  auto* mutex = static_cast<pthread_mutex_t*>(place);
  pthread_mutexattr_t attr;
  pthread_mutexattr_init(&attr);
  pthread_mutexattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
  pthread_mutexattr_setrobust(&attr, PTHREAD_MUTEX_ROBUST);
  int error = pthread_mutex_init(mutex, &attr);
  pthread_mutexattr_destroy(&attr);
  if (error == 0) error = pthread_mutex_lock(mutex);
  return -error;
}

}  // namespace

ctl::Msg MessageOf(ctl::Type type, const Listener& listener) {
  ctl::Msg message;
  message.type = type;
  message.uuid = listener.stack;
  message.a = listener.ep_idx;
  message.b = listener.ep_gen;
  message.c = listener.backlog;
  message.addr = listener.local;
  message.cookie = listener.cookie;
  message.d = (listener.family == AF_INET6 ? ctl::kListenerIpv6 : 0) |
              (listener.v6only != 0 ? ctl::kListenerV6Only : 0) |
              (listener.shares_port ? ctl::kListenerSharesPort : 0) |
              (listener.learnt ? ctl::kListenerLearnt : 0);
  return message;
}

Listener ListenerIn(const ctl::Msg& message) {
  Listener listener;
  listener.stack = message.uuid;
  listener.ep_idx = message.a;
  listener.ep_gen = message.b;
  listener.backlog = message.c;
  listener.local = message.addr;
  listener.cookie = message.cookie;
  listener.family = (message.d & ctl::kListenerIpv6) != 0 ? AF_INET6 : AF_INET;
  listener.v6only = (message.d & ctl::kListenerV6Only) != 0 ? 1 : 0;
  listener.shares_port = (message.d & ctl::kListenerSharesPort) != 0;
  listener.learnt = (message.d & ctl::kListenerLearnt) != 0;
  return listener;
}

class Directory::Change {
 public:
  explicit Change(pstn_dir* dir) : dir_(dir) {
    StoreRelaxed(dir_->seq, LoadRelaxed(dir_->seq) + 1);
    // [W1] the odd number is seen before any changed entry; pairs with the reader's acquire load
    // of seq and its fence before the second look.
    std::atomic_thread_fence(std::memory_order_release);
  }
  ~Change() { StoreRelease(dir_->seq, LoadRelaxed(dir_->seq) + 1); }  // [W1]
  Change(const Change&) = delete;
  Change& operator=(const Change&) = delete;

 private:
  pstn_dir* dir_;
};

Directory::~Directory() {
  if (dir_ == nullptr) return;
  // The kernel can't mark what is no longer mapped when the thread ends, so an orderly end marks it
  // itself. In between the word is 0, which readers take for dead as well.
  auto* mutex = reinterpret_cast<pthread_mutex_t*>(dir_->alive_mutex);
  pthread_mutex_unlock(mutex);
  StoreRelease(*reinterpret_cast<uint32_t*>(dir_->alive_mutex), kOwnerDied);
  munmap(dir_, sizeof(pstn_dir));
}

int Directory::Create(const pstn_uuid& id) {
  UniqueFd fd(memfd_create("postern-directory", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.ok() || ftruncate(fd.get(), sizeof(pstn_dir)) != 0) return -errno;
  void* map = mmap(nullptr, sizeof(pstn_dir), PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (map == MAP_FAILED) return -errno;
  dir_ = static_cast<pstn_dir*>(map);
  // Our own mapping stays writable; no process gets another one, not even through this descriptor.
  const int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL;
  if (fcntl(fd.get(), F_ADD_SEALS, seals) != 0) return -errno;
  const int error = LockForLife(dir_->alive_mutex);
  if (error != 0) return error;
  dir_->size_bytes = sizeof(pstn_dir);
  dir_->id = id;
  dir_->pid = static_cast<uint32_t>(getpid());
  dir_->port_low = PortLow();
  dir_->abi_version = PSTN_ABI_VERSION;
  StoreRelease(dir_->magic, PSTN_MAGIC_DIR);
  fd_ = Share(std::move(fd));
  return 0;
}

uint32_t Directory::FindEntry(const pstn_uuid& stack, uint32_t ep_idx, uint32_t ep_gen) const {
  const auto it = entries_.find({stack.hi, stack.lo, ep_idx, ep_gen});
  return it != entries_.end() ? it->second : PSTN_NONE;
}

const Listener* Directory::Find(const pstn_uuid& stack, uint32_t ep_idx, uint32_t ep_gen) const {
  const uint32_t entry = FindEntry(stack, ep_idx, ep_gen);
  return entry != PSTN_NONE ? &listeners_.at(entry) : nullptr;
}

std::vector<uint32_t> Directory::EntriesAt(uint16_t port) const {
  std::vector<uint32_t> found;
  for (uint32_t next = dir_->port_head[port]; IsEntry(next); next = dir_->listeners[next - 1].next)
    found.push_back(next - 1);
  return found;
}

std::vector<Listener> Directory::AtPort(uint16_t port) const {
  std::vector<Listener> found;
  for (const uint32_t entry : EntriesAt(port)) found.push_back(listeners_.at(entry));
  return found;
}

void Directory::Write(uint32_t entry, const Listener& l) {
  pstn_dir_listener& e = dir_->listeners[entry];
  e.stack = l.stack;
  StoreRelaxed(e.ep_idx, l.ep_idx);
  StoreRelaxed(e.ep_gen, l.ep_gen);
  e.local = l.local;
  StoreRelaxed(e.family, l.family);
  StoreRelaxed(e.v6only, l.v6only);
  StoreRelaxed(e.backlog, l.backlog);
  StoreRelaxed(e.learnt, l.learnt ? 1u : 0u);
  e.source = l.source;
  StoreRelaxed(e.netns_ino, l.netns_ino);
  StoreRelaxed(e.cookie, l.cookie);
  StoreRelaxed(e.used, 1);
}

uint32_t& Directory::EndOfChain(uint16_t port) {
  uint32_t* at = &dir_->port_head[port];
  while (IsEntry(*at)) at = &dir_->listeners[*at - 1].next;
  return *at;
}

// At the end of the port's chain, so that a reader that walks it meets what was there before first.
void Directory::Link(uint32_t entry, uint16_t port) {
  uint32_t& end = EndOfChain(port);
  StoreRelaxed(dir_->listeners[entry].next, end);
  StoreRelaxed(end, entry + 1);
}

void Directory::Unlink(uint32_t entry, uint16_t port) {
  uint32_t* at = &dir_->port_head[port];
  while (IsEntry(*at) && *at != entry + 1) at = &dir_->listeners[*at - 1].next;
  if (*at == entry + 1) StoreRelaxed(*at, dir_->listeners[entry].next);
}

void Directory::SetSeeks(bool seeks) {
  Change change(dir_);
  for (const uint16_t port : sought_) StoreRelaxed(EndOfChain(port), 0);
  sought_.clear();
  StoreRelaxed(dir_->seeks, seeks ? 1u : 0u);
}

void Directory::SetSought(uint16_t port) {
  if (!sought_.insert(port).second) return;
  Change change(dir_);
  StoreRelaxed(EndOfChain(port), PSTN_DIR_SOUGHT);
}

bool Directory::IsSought(uint16_t port) const {
  return LoadRelaxed(dir_->seeks) == 0 || sought_.count(port) != 0;
}

void Directory::Lose(const std::vector<uint32_t>& entries) {
  for (const uint32_t entry : entries) {
    const auto it = listeners_.find(entry);
    if (it == listeners_.end()) continue;
    const Listener gone = it->second;
    Remove(entry);
    if (on_lost && !gone.foreign) on_lost(gone);
  }
}

// Whoever is at the same place, or has the same socket, is at the same port.
void Directory::WithdrawEnded(const Listener& by) {
  std::vector<uint32_t> ended = EntriesAt(by.local.port);
  std::erase_if(ended, [&](uint32_t entry) {
    const Listener& l = listeners_.at(entry);
    if (l.cookie != by.cookie) return by.shares_port || !SamePlace(l, by);
    // One stack has one endpoint for one socket of the kernel's: of a guest's, an older one goes,
    // so that one socket does not take all places.
    return !by.guests || !IsOf(l, by.stack) || ListenerKeyOf(l) == ListenerKeyOf(by);
  });
  Lose(ended);
}

bool Directory::HasRoomFor(const Listener& guests) const {
  const auto it = guests_of_.find(guests.uid);
  const uint32_t has = it != guests_of_.end() ? it->second : 0;
  return guests_ < kGuestsMost && (has == 0 || (has + 1) * 2 <= kGuestsMost - guests_);
}

int Directory::Publish(const Listener& listener) {
  WithdrawEnded(listener);
  uint32_t entry = FindEntry(listener.stack, listener.ep_idx, listener.ep_gen);
  Listener before;
  if (entry != PSTN_NONE) {
    Change change(dir_);
    before = listeners_[entry];
    Unlink(entry, before.local.port);
    Write(entry, listener);
    Link(entry, listener.local.port);
  } else {
    if (listener.foreign && foreign_ >= kForeignMost) return -ENOSPC;
    if (listener.guests && !HasRoomFor(listener)) return -ENOSPC;
    if (!free_entries_.empty()) {
      entry = free_entries_.back();
      free_entries_.pop_back();
    } else if (entry_hw_ < PSTN_DIR_LISTENERS) {
      entry = entry_hw_++;
    } else {
      return -ENOSPC;
    }
    Change change(dir_);
    Write(entry, listener);
    Link(entry, listener.local.port);
    foreign_ += listener.foreign ? 1u : 0u;
    if (listener.guests) ++guests_, ++guests_of_[listener.uid];
  }
  listeners_[entry] = listener;
  entries_[ListenerKeyOf(listener)] = entry;
  TellForeignGone(before);
  if (on_listed && !listener.learnt) on_listed(listener);
  return 0;
}

void Directory::TellForeignGone(const Listener& gone) const {
  if (!on_foreign_gone || !gone.foreign || gone.learnt) return;
  for (const uint32_t entry : EntriesAt(gone.local.port)) {
    const Listener& l = listeners_.at(entry);
    if (l.cookie == gone.cookie && IsOf(l, gone.stack)) return;
  }
  on_foreign_gone(gone);
}

void Directory::Remove(uint32_t entry) {
  const Listener gone = listeners_[entry];
  {
    Change change(dir_);
    Unlink(entry, gone.local.port);
    StoreRelaxed(dir_->listeners[entry].used, 0);
  }
  foreign_ -= gone.foreign ? 1u : 0u;
  if (gone.guests) {
    --guests_;
    const auto of = guests_of_.find(gone.uid);
    if (--of->second == 0) guests_of_.erase(of);
  }
  entries_.erase(ListenerKeyOf(gone));
  listeners_.erase(entry);
  free_entries_.push_back(entry);
  TellForeignGone(gone);
}

bool Directory::Withdraw(const pstn_uuid& stack, uint32_t ep_idx, uint32_t ep_gen) {
  const uint32_t entry = FindEntry(stack, ep_idx, ep_gen);
  if (entry == PSTN_NONE) return false;
  Remove(entry);
  return true;
}

void Directory::SetOpen(bool open) { StoreRelaxed(dir_->closed, open ? 0u : 1u); }

void Directory::SetHost(const pstn_host& host) {
  if (memcmp(&dir_->host, &host, sizeof(host)) == 0) return;
  Change change(dir_);
  dir_->host = host;
}

void Directory::SetAddresses(const std::vector<pstn_addr>& addresses) {
  const size_t count = std::min<size_t>(addresses.size(), PSTN_DIR_ADDRS);
  if (count < addresses.size())
    Warn("only %zu of %zu local addresses fit", count, addresses.size());
  const size_t bytes = count * sizeof(pstn_addr);
  if (dir_->addr_count == count &&
      (count == 0 || memcmp(dir_->addrs, addresses.data(), bytes) == 0))
    return;
  Change change(dir_);
  if (count != 0) memcpy(dir_->addrs, addresses.data(), bytes);
  StoreRelaxed(dir_->addr_count, count);
}

}  // namespace postern::daemon
